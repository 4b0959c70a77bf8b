"""A loop over a queue that can be stopped. Control flow, and no delivery guarantee of its own. SPEC(000).

Not here, on purpose: retries, buffers, threads, health state, claiming by itself. New entries are
read with ``next``, ``iter_messages`` or ``run``; what others left behind is fetched only when asked
for, with ``recover_own``, ``claim_stale`` or ``run_claim_stale``.
"""

import functools
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from conquiet.config import QueueConfig
from conquiet.errors import ConfigurationError, MalformedMessageError
from conquiet.kernel.functions import refuse_awaitable, require_arguments, require_plain_function
from conquiet.kernel.validation import require_seconds
from conquiet.queue.client import SOCKET_TIMEOUT_S, AnyRedis
from conquiet.queue.models import Backlog, MessageBatch, QueueMessage
from conquiet.queue.redis_streams import LONGEST_SLICE_MS, RedisStreamsQueue, require_config
from conquiet.signals import TerminationHandlers, install_termination_handlers

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sqlalchemy import Engine

    from conquiet.db.session import DbSession

_SLICE_S = LONGEST_SLICE_MS / 1000

Handler = Callable[[QueueMessage, "DbSession"], object]
"""Must be a plain function. What it returns is not looked at."""

OnMalformed = Callable[[MalformedMessageError], None]


class Once(Protocol):
    """Decides whether the handler of a message is to run: ``conquiet.bridge.Inbox`` is the one to use.

    Promises to write what it decides by into the session's transaction, so that both commit or none.
    """

    def once(self, session: "DbSession", msg: QueueMessage) -> "AbstractContextManager[bool]":
        """Give True if the handler is to run, False if its effect is in the database already."""
        ...


class QueueConsumer:
    """Reads one message at a time and hands it over; every acknowledgement is yours, except in ``run``.

    Used by one thread. ``stop()`` may come from a signal handler, another thread or another consumer.

    Args:
        redis: The client to clone our connections from; see ``RedisStreamsQueue``.
        config: Stream, group, consumer name and waiting time; ``max_read_count`` must be 1.
        enable_signal_handlers: Call ``stop()`` on SIGTERM and SIGINT. Off by default: signals belong to
            the process, not to a library. ``close()`` puts the former handlers back.
        command_timeout_s: See ``RedisStreamsQueue``.

    Raises:
        ConfigurationError: ``max_read_count`` is not 1: a second message could only be lost or buffered.
    """

    def __init__(
        self,
        redis: AnyRedis,
        config: QueueConfig,
        *,
        enable_signal_handlers: bool = False,
        command_timeout_s: float = SOCKET_TIMEOUT_S,
    ) -> None:
        require_config(config)
        if config.max_read_count != 1:
            raise ConfigurationError(
                f"max_read_count must be 1 under QueueConsumer, which holds one message at a time; "
                f"got {config.max_read_count}"
            )
        self.queue = RedisStreamsQueue(redis, config, command_timeout_s=command_timeout_s)
        self.config = config
        self._stopping = False
        self._handlers: TerminationHandlers | None = None
        if enable_signal_handlers:
            try:
                self._handlers = install_termination_handlers(self.stop)
            except BaseException:
                self.queue.close()
                raise

    # ------------------------------------------------------------------ life
    def stop(self) -> None:
        """Ask for the end: no new read is started; one that waits ends within a second.

        Nothing is acknowledged or claimed by it: a message in your hands stays pending until you
        acknowledge it. Only assigns, so it may be called from a signal handler.
        """
        self._stopping = True

    def close(self) -> None:
        """Close the connections we opened and put former signal handlers back."""
        if self._handlers is not None:
            self._handlers.restore()
        self.queue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ one at a time
    def next(self, block_ms: int | None = None) -> QueueMessage | None:
        """Wait for the next new message, ``config.block_ms`` unless told otherwise. SPEC(000 §6.1).

        The wait is cut into reads of at most one second, so that a stop request is noticed; it is as
        long in sum as was asked for.

        Returns:
            The message, or None if none came or a stop was asked for.

        Raises:
            MalformedMessageError: An entry that breaks the format. It is pending; the next call reads on.
            QueueError: Redis failed. Nothing is retried.
        """
        total_ms = self.config.block_ms if block_ms is None else block_ms
        if self._stopping:
            return None
        if type(total_ms) is not int or total_ms <= LONGEST_SLICE_MS:
            return _first(self.queue.read(total_ms))  # also what is not a positive int, to be refused there
        deadline = time.monotonic() + total_ms / 1000
        slice_ms = LONGEST_SLICE_MS
        while slice_ms > 0 and not self._stopping:
            found = self.queue.read(slice_ms)
            if found:
                return found[0]
            slice_ms = min(LONGEST_SLICE_MS, round((deadline - time.monotonic()) * 1000))
        return None

    def iter_messages(self) -> Iterator[QueueMessage]:
        """Yield new messages until stopped. Every acknowledgement is yours. SPEC(000 §7)."""
        while not self._stopping:
            msg = self.next()
            if msg is not None:
                yield msg

    def ack(self, msg: QueueMessage) -> None:
        """Acknowledge a message whose work is done and durable. SPEC(000 §8)."""
        self.queue.ack(msg)

    def ack_id(self, message_id: str) -> None:
        """Acknowledge by id alone; see ``RedisStreamsQueue.ack_id``."""
        self.queue.ack_id(message_id)

    def extend(self, msg: QueueMessage) -> bool:
        """Keep others from claiming ``msg`` for another while; see ``RedisStreamsQueue.extend``."""
        return self.queue.extend(msg)

    # ------------------------------------------------------------------ recovery, only when asked for
    def claim_stale(self, min_idle_ms: int | None = None, count: int = 10) -> MessageBatch:
        """Take over messages idle for ``config.claim_idle_ms`` unless told otherwise. SPEC(000 §10.4)."""
        return self.queue.claim_stale(self.config.claim_idle_ms if min_idle_ms is None else min_idle_ms, count)

    def recover_own(self, count: int = 100, *, after: str = "0-0") -> MessageBatch:
        """Return messages pending under our own name from before; see ``RedisStreamsQueue.recover_own``."""
        return self.queue.recover_own(count, after=after)

    def backlog(self) -> Backlog:
        """Say how far the group is behind; see ``RedisStreamsQueue.backlog``."""
        return self.queue.backlog()

    # ------------------------------------------------------------------ the whole path
    def run(
        self,
        *,
        handler: Handler,
        engine: "Engine",
        on_malformed: OnMalformed | None = None,
        inbox: Once | None = None,
    ) -> None:
        """Handle new messages until stopped: read, one transaction, commit, acknowledge. SPEC(000 §1.1).

        Nothing is retried and nothing is swallowed. If the handler or the commit fails, the
        transaction is rolled back, the message stays pending, and the error leaves ``run``. A stop
        that comes while the handler works lets it finish: its transaction is committed and its
        message acknowledged, then ``run`` returns.

        Args:
            handler: Does the work of one message with the session it is given.
            engine: Where sessions come from; never closed by us.
            on_malformed: Called with each entry that breaks the format, instead of raising its error. It
                stays pending unless you acknowledge it there.
            inbox: Makes the effect of a message happen once: what an inbox has seen is acknowledged without
                running its handler.
        """
        _check(handler, inbox)
        open_session = _sessions_of(engine)
        while not self._stopping:
            try:
                msg = self.next(block_ms=self.config.block_ms)
            except MalformedMessageError as error:
                _hand_over(error, on_malformed)
                continue
            if msg is not None:
                self._handle(msg, handler, open_session, inbox)

    def run_claim_stale(
        self,
        *,
        handler: Handler,
        engine: "Engine",
        min_idle_ms: int | None = None,
        interval_s: float = 30.0,
        on_malformed: OnMalformed | None = None,
        inbox: Once | None = None,
    ) -> None:
        """Handle what others left behind until stopped: the explicit recovery loop. SPEC(000 §10.3).

        One process per group is enough; more do no harm. Messages are claimed one by one, because those
        claimed ahead would become stale again while they wait. When none is stale, the loop
        sleeps for ``interval_s``. Errors leave it as they leave ``run``.
        """
        require_seconds("interval_s", interval_s)
        _check(handler, inbox)
        open_session = _sessions_of(engine)
        while not self._stopping:
            try:
                claimed = self.claim_stale(min_idle_ms, 1)
            except MalformedMessageError as error:
                _hand_over(error, on_malformed)
                continue
            if claimed:
                self._handle(claimed[0], handler, open_session, inbox)
            elif not claimed.deleted:  # a deleted one was dropped just now: there may be more behind it
                self._sleep(interval_s)

    def _handle(
        self, msg: QueueMessage, handler: Handler, open_session: "Callable[[], DbSession]", inbox: Once | None
    ) -> None:
        # Commit first, ack second. A crash in between delivers the message again, which an inbox or an idempotent
        # handler survives; the other order would lose it. An error leaves here with the message pending.
        with open_session() as session:
            # A coroutine is refused before the commit: acknowledged, its message would be lost.
            if inbox is None:
                refuse_awaitable("the handler", handler(msg, session))
            else:
                with inbox.once(session, msg) as first_time:
                    if first_time:
                        refuse_awaitable("the handler", handler(msg, session))
        self.ack(msg)

    def _sleep(self, duration_s: float) -> None:
        # A plain flag cannot wake a sleeper, and an event must not be set in a signal handler: so, slices.
        deadline = time.monotonic() + duration_s
        while not self._stopping and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(left_s, _SLICE_S))


def _check(handler: Handler, inbox: Once | None) -> None:
    """Refuse what would fail with a message in its hands."""
    require_plain_function("handler", handler)
    require_arguments("handler", handler, "msg", "session")
    if inbox is not None and (isinstance(inbox, type) or not callable(getattr(inbox, "once", None))):
        raise ConfigurationError("inbox must be an Inbox(), or another object with once(session, msg)")


def _sessions_of(engine: "Engine") -> "Callable[[], DbSession]":
    """Return what opens a session. Called before the first read: what is missing must not cost a message."""
    from conquiet.db.session import DbSession

    DbSession(engine)  # opens nothing, but refuses an engine that cannot work
    return functools.partial(DbSession, engine)


def _first(batch: MessageBatch) -> QueueMessage | None:
    return batch[0] if batch else None


def _hand_over(error: MalformedMessageError, on_malformed: OnMalformed | None) -> None:
    if on_malformed is None:
        raise error
    on_malformed(error)
