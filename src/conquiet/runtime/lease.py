"""Messages whose lease is kept, and the thread that extends it.

The heartbeat has a thread and a synchronous connection of its own, so that a handler that blocks the
event loop cannot starve it. It reads the table of held messages without a lock: the event loop inserts
and removes, the thread takes copies, and each of these is one step under the interpreter lock.

An extension never takes a message back. XCLAIM does not ask who the owner is, so owner and extension are
one script (``EXTEND_LEASE``); an entry that it does not extend belongs to another consumer, and its handler is
notified.

See docs/decisions/0012.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable

from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.core.seen_ids import SeenIds
from conquiet.errors import LeaseLostError, QueueError
from conquiet.redis_transport.client import SyncClient
from conquiet.redis_transport.errors import RedisError
from conquiet.redis_transport.replies import text
from conquiet.redis_transport.stream_scripts import EXTEND_LEASE
from conquiet.redis_transport.topology import Topology
from conquiet.runtime.message import HandlerState, Ownership, RuntimeMessage
from conquiet.runtime.name_reservation import RENEW_S, NameReservation
from conquiet.runtime.settings import RuntimeSettings

logger = FactLogger(__name__)

LeaseChunk = tuple[str, list[RuntimeMessage]]
"""A stream, and messages of it."""

_LOOK_S = 0.01
_BATCH = 250
"""Ids in one script call: the server does nothing else meanwhile, about a millisecond."""


class LeaseTable:
    """Every message that was delivered to us and is not acknowledged, given up or released."""

    def __init__(self, streams: Iterable[str]) -> None:
        self._held: dict[str, dict[str, RuntimeMessage]] = {stream: {} for stream in streams}
        self._survived = SeenIds()

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def of(self, stream: str) -> dict[str, RuntimeMessage]:
        """The held messages of one stream, by id. The table itself, not a copy."""
        return self._held[stream]

    def add(self, messages: Iterable[RuntimeMessage]) -> None:
        """Take messages into custody."""
        for message in messages:
            self._held[message.stream][message.id] = message

    def release(self, message: RuntimeMessage) -> None:
        """Let go of a message. One that was let go of already is ignored, and so is another delivery of the entry."""
        held = self._held[message.stream]
        if held.get(message.id) is message:
            del held[message.id]

    def release_all(self, stream: str, messages: Iterable[RuntimeMessage]) -> None:
        """The same for many of one stream."""
        held = self._held[stream]
        for message in messages:
            if held.get(message.id) is message:
                del held[message.id]

    def note_survived(self, message: RuntimeMessage) -> None:
        """Note that a handler ended with an error of its own: this message does not kill its process."""
        self._survived.add(message.stream, message.id)

    def has_survived(self, message: RuntimeMessage) -> bool:
        """True if its handler ended here before."""
        return self._survived.is_known(message.stream, message.id)

    def snapshot(self) -> list[RuntimeMessage]:
        """Copy what is held now. Safe from another thread."""
        return [message for held in self._held.values() for message in list(held.values())]


def due(messages: Iterable[RuntimeMessage], now: float, settings: RuntimeSettings) -> list[RuntimeMessage]:
    """Return what should be extended: not fresh, not lost, and not held for longer than allowed. Pure."""
    fresh = now - settings.heartbeat_s / 2
    return [
        message
        for message in messages
        if message.leased_at <= fresh
        and message.ownership in {Ownership.HELD, Ownership.SETTLING}
        and not is_overlong(message, now, settings)
    ]


def is_overlong(message: RuntimeMessage, now: float, settings: RuntimeSettings) -> bool:
    """True if the handler has had its message for ``max_lease_s``: others may have it now. Pure."""
    return bool(message.started_at) and now - message.started_at > settings.max_lease_s


def expired(messages: Iterable[RuntimeMessage], now: float, settings: RuntimeSettings) -> list[RuntimeMessage]:
    """Return the overlong ones that are not certainly ours any more and whose holder does not know yet. Pure."""
    return [
        message
        for message in messages
        if is_overlong(message, now, settings)
        and message.ownership is Ownership.HELD
        and message.progress is HandlerState.RUNNING
        and now - message.leased_at > settings.claim_idle_s
    ]


def lease_lost(message: RuntimeMessage) -> LeaseLostError:
    """Return the error for a message that another consumer owns by now."""
    return LeaseLostError(
        f"message {message.id} of stream {printable(message.stream)!r} belongs to another consumer by now; "
        "it was not acknowledged here",
        stream=message.stream,
        message_id=message.id,
    )


class Heartbeat:
    """The thread. ``on_lost`` and ``on_error`` are called in it; they must hand over to the event loop.

    Args:
        servers: Where the streams are.
        table: What we hold.
        group: The consumer group.
        consumer_id: Our name in it.
        settings: How often, and how long at most.
        on_lost: Called with each message that turned out to be in other hands.
        on_error: Called with the driver's error when an extension failed.
        on_success: Called after each round that failed in nothing.
        name: Our name in the group, renewed with the leases.
        on_name_taken: Called when another engine has taken it: we stood still for too long.
    """

    def __init__(  # noqa: PLR0913 - put together in one place
        self,
        servers: Topology,
        table: LeaseTable,
        *,
        group: str,
        consumer_id: str,
        settings: RuntimeSettings,
        on_lost: Callable[[RuntimeMessage], None],
        on_error: Callable[[RedisError | OSError], None],
        on_success: Callable[[], None] = lambda: None,
        name: NameReservation,
        on_name_taken: Callable[[QueueError], None],
    ) -> None:
        self._name = name
        self._on_name_taken = on_name_taken
        self._servers = servers
        self._table = table
        self._who = (group, consumer_id)
        self._settings = settings
        self._on_lost = on_lost
        self._on_error = on_error
        self._on_success = on_success
        self._doubtful: set[SyncClient] = set()
        self._stop = threading.Event()
        self._last_success = time.monotonic()
        # A daemon: a process that ends without stopping its engine must not hang on it.
        self._thread = threading.Thread(target=self._run, name="conquiet-lease", daemon=True)

    @property
    def is_alive(self) -> bool:
        """True while the thread runs and messages do not turn stale for want of it."""
        return self._thread.is_alive() and time.monotonic() - self._last_success < self._settings.claim_idle_s

    def start(self) -> None:
        """Begin."""
        self._last_success = time.monotonic()
        self._thread.start()

    async def stop(self, *, timeout_s: float) -> None:
        """End the thread, in the middle of a call if need be. Does not wait for longer than so long.

        Looked at again and again, not waited for in a thread of asyncio's: handlers may have taken all of those.
        """
        self._stop.set()
        self._name.changed.set()
        deadline = time.monotonic() + timeout_s
        while self._thread.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)
            self._servers.abort()
        if self._thread.is_alive():
            # It is connecting, which cannot be aborted. It ends with the connect timeout.
            logger.warning("lease heartbeat has not ended yet")

    def _run(self) -> None:
        pause_s = self._settings.heartbeat_s
        while not self._wait(min(pause_s, RENEW_S)):
            try:
                self.beat(time.monotonic())
                if (taken := self._name.renew(self._servers.client)) is not None:
                    self._on_name_taken(taken)
            except Exception as error:  # noqa: BLE001 - see below
                if self._stop.is_set():
                    return  # cut off, in whatever way that shows; nothing is held any more
                if isinstance(error, RedisError | OSError):
                    self._on_error(error)
                else:
                    # A defect of ours. Without its heartbeat the engine would look fine and lose its leases.
                    logger.failure(logging.ERROR, "lease heartbeat failed", error)
                # Sooner than usual: a message may be one failed beat away from turning stale.
                pause_s = self._settings.heartbeat_s / 4
            else:
                self._last_success = time.monotonic()
                self._on_success()
                pause_s = self._settings.heartbeat_s

    def _wait(self, seconds: float) -> bool:
        """Wait for the next beat, or until a renewal is due at once. Returns True if the thread is to end."""
        self._name.changed.wait(seconds)
        self._name.changed.clear()
        return self._stop.is_set()

    def beat(self, now: float) -> None:
        """Extend everything that is due, and report lost leases."""
        held = self._table.snapshot()
        for message in expired(held, now, self._settings):
            self._lose(message)
        by_stream: dict[str, list[RuntimeMessage]] = {}
        for message in due(held, now, self._settings):
            by_stream.setdefault(message.stream, []).append(message)
        batches: dict[SyncClient, list[LeaseChunk]] = {}
        failure: RedisError | OSError | None = None
        for stream, messages in by_stream.items():
            try:
                theirs = batches.setdefault(self._servers.client(stream), [])
            except (RedisError, OSError) as error:
                failure = error
            else:
                theirs += [(stream, messages[at : at + _BATCH]) for at in range(0, len(messages), _BATCH)]
        # Who has not answered last time is asked last: the streams of the other nodes are not to suffer from it.
        doubtful, self._doubtful = self._doubtful, set()
        for client in sorted(batches, key=doubtful.__contains__):
            try:
                self._extend(client, batches[client], time.monotonic())
            except (RedisError, OSError) as error:
                self._doubtful.add(client)
                failure = error
        if failure is not None:
            self._servers.refresh()
            raise failure

    def _extend(self, client: SyncClient, batches: list[LeaseChunk], now: float) -> None:
        with client.pipeline(transaction=False) as pipe:
            for stream, messages in batches:
                # The script itself and not its digest: it is short, and the right to EVAL is all it takes.
                pipe.eval(EXTEND_LEASE, 1, stream, *self._who, *(message.id for message in messages))
            replies = pipe.execute(raise_on_error=False)
        failure: RedisError | None = None
        for (_, messages), kept_ids in zip(batches, replies, strict=True):
            if isinstance(kept_ids, RedisError):
                failure = kept_ids  # of this stream: what the server said about the others counts all the same
                continue
            kept = {text(kept_id) for kept_id in kept_ids}
            for message in messages:
                if message.id in kept:
                    # The moment before the call, not after it: the server's clock started in between.
                    message.leased_at = now
                elif not message.has_ended:
                    self._lose(message)
        if failure is not None:
            raise failure

    def _lose(self, message: RuntimeMessage) -> None:
        # Set here and not on the event loop: a handler that blocks the loop can still see it.
        if message.lose():
            self._on_lost(message)
