"""A loop over a queue that can be stopped. Control flow only; it adds no delivery guarantee. SPEC(000).

Not here, on purpose: retries, buffers, threads, automatic claims. New entries are read with ``next``, ``iter_messages``
or ``run``. Entries of an earlier run or of a dead consumer are read only on request, with ``recover_own``,
``claim_stale``, ``run(recover=True)`` or ``run_claim_stale``.

See docs/decisions/0010 and 0014.
"""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from conquiet.config import QueueConfig
from conquiet.core.batching import WITHIN_S, BatchSettings
from conquiet.core.closing import ClosedAfterUse
from conquiet.core.deduplicator import Deduplicator
from conquiet.core.lifecycle import BlockingLifecycle, Health, Status, sleep_unless
from conquiet.core.log import FactLogger
from conquiet.core.validation import require_instance, require_seconds
from conquiet.errors import ConfigurationError, LifecycleError, QueueError
from conquiet.queue.batch_runner import BatchInboxProtocol, BatchMessageRunner, QueueBatchHandler
from conquiet.queue.models import Backlog, MessageBatch, QueueMessage
from conquiet.queue.outage import Outage
from conquiet.queue.redis_streams import LONGEST_SLICE_MS, RedisStreamsQueue
from conquiet.queue.runner import MessageRunner, OnMalformed, QueueHandler
from conquiet.redis_transport.client import SOCKET_TIMEOUT_S, AnyRedis
from conquiet.redis_transport.errors import is_aborted
from conquiet.signals import TerminationHandlers, install_termination_handlers

if TYPE_CHECKING:
    from sqlalchemy import Engine

logger = FactLogger(__name__)


class QueueConsumer(ClosedAfterUse):
    """Reads one message at a time. The caller acknowledges each message, except in ``run``.

    For one thread. ``stop()`` and ``health()`` may be called from others, and ``stop()`` from a signal handler.

    Args:
        redis: The client to clone the connections from; see ``RedisStreamsQueue``.
        config: Stream, group, consumer name and waiting time; ``max_read_count`` must be 1.
        enable_signal_handlers: Call ``stop()`` on SIGTERM and SIGINT. Off by default: signals belong to
            the process, not to a library. ``close()`` restores the previous handlers.
        command_timeout_s: See ``RedisStreamsQueue``.

    Raises:
        ConfigurationError: ``max_read_count`` is not 1: a second message would have to be buffered.
    """

    def __init__(
        self,
        redis: AnyRedis,
        config: QueueConfig,
        *,
        enable_signal_handlers: bool = False,
        command_timeout_s: float = SOCKET_TIMEOUT_S,
    ) -> None:
        require_instance("config", config, QueueConfig)
        if config.max_read_count != 1:
            raise ConfigurationError(
                f"max_read_count must be 1 under QueueConsumer, which holds one message at a time; "
                f"got {config.max_read_count}"
            )
        self.queue = RedisStreamsQueue(redis, config, command_timeout_s=command_timeout_s)
        self.config = config
        self._stopping = False
        self._stop_requested = False
        self._closes_at_end = False
        self._is_closed = False
        self._run_status = BlockingLifecycle("this QueueConsumer")
        self._outage: Outage | None = None
        self._runner: MessageRunner | BatchMessageRunner | None = None
        self._handlers: TerminationHandlers | None = None
        if enable_signal_handlers:
            try:
                self._handlers = install_termination_handlers(self.stop)
            except BaseException:
                self.queue.close()
                raise

    # ------------------------------------------------------------------ lifecycle
    def stop(self) -> None:
        """Request the stop: no new read is started, and a waiting read ends within a second.

        It acknowledges and claims nothing: a message that the caller holds stays pending until it is acknowledged.

        A second call shuts the connections down, so that a wait for Redis ends immediately. An entry that Redis has
        delivered meanwhile is pending for this consumer; ``recover_own`` finds it. A running handler cannot be
        interrupted: it finishes, its transaction is committed and its message acknowledged.

        Takes no lock, so signal handlers and other threads may call it.
        """
        if self._stop_requested:
            self.queue.abort()
        self._stop_requested = True
        self._end()

    def _end(self) -> None:
        """Stop without counting as a call of ``stop()``: a later ``stop()`` does not force."""
        self._stopping = True
        self._run_status.stop()

    @property
    def is_stopping(self) -> bool:
        """True once ``stop()`` was called."""
        return self._stopping

    @property
    def name(self) -> str:
        """Name of this consumer inside its group."""
        return self.config.consumer_name

    @property
    def abandoned(self) -> int:
        """Always 0: ``run()`` returns only after its handler has ended."""
        return 0

    def health(self) -> Health:
        """Report whether ``run()`` handles messages now. Never raises; sends nothing."""
        is_paused = self._outage is not None and self._outage.is_on
        reason = "paused: a server that the handler needs is unavailable" if is_paused else ""
        handled = 0 if self._runner is None else self._runner.handled
        return Health(status=self._run_status.status, reason=reason, handled=handled)

    def close(self) -> None:
        """Stop, wait for the end of ``run()``, close the connections and restore the previous signal handlers.

        May be called twice. Called by the handler of ``run()`` it only stops, and ``run()`` closes at its end.
        """
        self._end()
        if not self._run_status.wait_ended():
            self._closes_at_end = True
            return
        self._release()

    def _release(self) -> None:
        self._is_closed = True
        if self._handlers is not None:
            self._handlers.restore()
        self.queue.close()

    # ------------------------------------------------------------------ one at a time
    def next(self, block_ms: int | None = None) -> QueueMessage | None:
        """Wait for the next new message, for ``config.block_ms`` by default. SPEC(000 §6.1).

        The wait consists of reads of at most one second each, so that a stop request is noticed.

        Returns:
            The message, or None if none came or a stop was requested.

        Raises:
            MalformedMessageError: An entry breaks the format. It is pending; the next call reads the next entry.
            QueueError: Redis failed. Nothing is retried.
            LifecycleError: The consumer is closed.
        """
        self._require_open()
        found = self._read(block_ms)
        return found[0] if found else None

    def next_batch(self, count: int, *, block_ms: int | None = None) -> MessageBatch:
        """Wait for new messages and return up to ``count`` of them; an empty batch if none came. See ``next``."""
        self._require_open()
        return self._read(block_ms, count)

    def _require_open(self) -> None:
        # After a stop a read returns nothing. After close() that would hide the mistake, and a loop would never end.
        if self._is_closed:
            raise LifecycleError("this QueueConsumer is closed; create a new one")

    def _read(self, block_ms: int | None, *count: int) -> MessageBatch:
        total_ms = self.config.block_ms if block_ms is None else block_ms
        if self._stopping:
            return MessageBatch()
        try:
            if type(total_ms) is not int or total_ms <= LONGEST_SLICE_MS:
                return self.queue.read(total_ms, *count)  # read() refuses what is not a positive int
            deadline = time.monotonic() + total_ms / 1000
            slice_ms = LONGEST_SLICE_MS
            while slice_ms > 0 and not self._stopping:
                found = self.queue.read(slice_ms, *count)
                if found or found.malformed:
                    return found
                slice_ms = min(LONGEST_SLICE_MS, round((deadline - time.monotonic()) * 1000))
        except QueueError as error:
            if not is_aborted(error):
                raise
        return MessageBatch()

    def iter_messages(self) -> Iterator[QueueMessage]:
        """Yield new messages until stopped. The caller acknowledges each. SPEC(000 §7)."""
        self._require_open()
        while not self._stopping:
            msg = self.next()
            if msg is not None:
                yield msg

    def ack(self, msg: QueueMessage) -> None:
        """Acknowledge a message after its effect is committed. SPEC(000 §8)."""
        self.queue.ack(msg)

    def ack_id(self, message_id: str) -> None:
        """Acknowledge by id alone; see ``RedisStreamsQueue.ack_id``."""
        self.queue.ack_id(message_id)

    def extend(self, msg: QueueMessage) -> bool:
        """Reset the idle time of ``msg``; see ``RedisStreamsQueue.extend``."""
        return self.queue.extend(msg)

    # ------------------------------------------------------------------ recovery, only on request
    def claim_stale(self, min_idle_ms: int | None = None, count: int = 10) -> MessageBatch:
        """Claim messages that were idle for ``config.claim_idle_ms``, or for the given time. SPEC(000 §10.4)."""
        return self.queue.claim_stale(self.config.claim_idle_ms if min_idle_ms is None else min_idle_ms, count)

    def recover_own(self, count: int = 100, *, after: str = "0-0") -> MessageBatch:
        """Return messages pending for this consumer from an earlier run; see ``RedisStreamsQueue.recover_own``."""
        return self.queue.recover_own(count, after=after)

    def backlog(self) -> Backlog:
        """Return how far the group is behind; see ``RedisStreamsQueue.backlog``."""
        return self.queue.backlog()

    # ------------------------------------------------------------------ handlers
    def run(
        self,
        *,
        handler: QueueHandler,
        engine: "Engine",
        on_malformed: OnMalformed | None = None,
        inbox: Deduplicator | None = None,
        recover: bool = False,
    ) -> None:
        """Handle new messages until stopped: read, one transaction, commit, acknowledge. SPEC(000 §1.1).

        Nothing is retried and no error is swallowed. If the handler or the commit fails, the transaction is rolled
        back, the message stays pending, and ``run`` raises the error. A stop during a handler lets it finish: its
        transaction is committed and its message acknowledged, then ``run`` returns.

        A failed message is not read again by a later ``run`` unless ``recover`` is true. Without ``recover``, a start
        logs a warning with the number of messages pending under this consumer's name.

        Args:
            handler: Does the work of one message with the session it gets.
            engine: Source of sessions; never closed here.
            on_malformed: Called with each entry that breaks the format, instead of raising its error. The entry stays
                pending unless the callback acknowledges it.
            inbox: Makes the effect of a message happen once: a message that the inbox knows is acknowledged without
                running its handler.
            recover: Handle first the messages pending under this consumer's name, after a failure or a killed process.
                No other live process may have that name. And while a server that the handler needs is unavailable
                (``InfrastructureError``), keep the message, wait, and run the handler again in a new transaction. Off
                by default, because SPEC(000) leaves every second attempt to the caller.
        """
        outage = Outage(self.config) if recover else None
        self.run_with(MessageRunner(self, handler, engine, on_malformed=on_malformed, inbox=inbox), outage)

    def run_batches(
        self,
        *,
        handler: QueueBatchHandler,
        engine: "Engine",
        batch: int = 200,
        within_s: float = WITHIN_S,
        on_malformed: OnMalformed | None = None,
        inbox: BatchInboxProtocol | None = None,
    ) -> None:
        """Handle new messages in batches until stopped: read many, one transaction, commit, one acknowledgement.

        If the handler or the commit fails, the transaction is rolled back and the batch is halved until the message
        that fails is alone. The others have their effect and are acknowledged. Then ``run_batches`` raises the error of
        the first message that failed, which stays pending. A stop lets a running batch finish.

        Before COMMIT the leases of all messages are extended by one call. A message that another consumer has claimed
        is taken out, and the batch is run without it.

        Args:
            handler: Does the work of all its messages with the session it gets: ``handler(msgs, session)``.
            engine: Source of sessions; never closed here.
            batch: Most messages of one transaction.
            within_s: Time within which the first message of a batch has its effect. The wait for further messages is
                this time minus the duration of the last batches, and at least half of it.
            on_malformed: Called with each entry that breaks the format; see ``run``.
            inbox: Makes the effect of a message happen once: messages in the inbox are not in the handler's list.
        """
        settings = BatchSettings(batch, within_s)
        runner = BatchMessageRunner(self, handler, engine, settings, on_malformed=on_malformed, inbox=inbox)
        self._run(runner, runner.run)

    def run_with(self, runner: MessageRunner, outage: Outage | None) -> None:
        """Run a prepared runner until stopped, and keep ``health()`` up to date."""
        self._run(runner, lambda: runner.run(outage), outage)

    def _run(
        self,
        runner: MessageRunner | BatchMessageRunner,
        until_stopped: Callable[[], None],
        outage: Outage | None = None,
    ) -> None:
        self._require_open()
        if self._stopping:
            return
        run_status = self._run_status
        if run_status.status in {Status.NEW, Status.STOPPED}:  # STOPPED: an earlier run has raised
            run_status = BlockingLifecycle("this QueueConsumer")
        run_status.start()
        self._run_status = run_status  # only now: a stop() that arrives meanwhile must not make the start fail
        self._runner, self._outage = runner, outage
        try:
            if not self._stopping:
                until_stopped()
        except QueueError as error:
            if not is_aborted(error):
                raise
            logger.warning("consumer stopped by force; %(command)s was interrupted", command=error.command)
        finally:
            if self._closes_at_end:
                self._release()
            self._run_status.finish()

    def run_claim_stale(
        self,
        *,
        handler: QueueHandler,
        engine: "Engine",
        min_idle_ms: int | None = None,
        interval_s: float = 30.0,
        on_malformed: OnMalformed | None = None,
        inbox: Deduplicator | None = None,
    ) -> None:
        """Claim and handle stale messages until stopped: the explicit recovery loop. SPEC(000 §10.3).

        One process per group is enough; more do no harm. Messages are claimed one by one, because those claimed ahead
        would become stale again while they wait. When none is stale, the loop sleeps for ``interval_s``. It raises
        what ``run`` raises.
        """
        require_seconds("interval_s", interval_s)
        runner = MessageRunner(self, handler, engine, on_malformed=on_malformed, inbox=inbox)
        self._run(runner, lambda: runner.run_claim_stale(min_idle_ms, interval_s))

    def sleep(self, duration_s: float) -> None:
        """Sleep, at most until a tenth of a second after a stop."""
        sleep_unless(lambda: self._stopping, duration_s)
