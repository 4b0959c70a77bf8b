"""The table of messages under lease, and the thread that extends the leases.

The heartbeat uses a separate thread and a separate synchronous connection, so that a handler that blocks the
event loop cannot starve it. It reads the table of held messages without a lock: the event loop inserts
and removes, the thread takes copies, and each of these operations is atomic under the interpreter lock.

An extension never claims a message from another consumer. XCLAIM does not check the owner, so one script
(``EXTEND_LEASE``) checks the owner and extends. An entry that it does not extend belongs to another consumer, and the
lease is reported as lost.

See docs/decisions/0010.
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
from conquiet.redis_transport.client_commands import commands_sync
from conquiet.redis_transport.errors import RedisError, translate
from conquiet.redis_transport.replies import text
from conquiet.redis_transport.stream_scripts import EXTEND_LEASE
from conquiet.redis_transport.topology import Topology
from conquiet.runtime.message import HandlerState, Ownership, RuntimeMessage
from conquiet.runtime.name_reservation import RENEW_S, NameReservation
from conquiet.runtime.settings import RuntimeSettings

logger = FactLogger(__name__)

LeaseChunk = tuple[str, list[RuntimeMessage]]
"""A stream, and some of its messages."""

_EXTENDING = "XCLAIM"
_LOOK_S = 0.01
_BATCH = 250
"""Ids per script call. A call blocks the server for about a millisecond."""


class LeaseTable:
    """Messages delivered to this engine and not yet acknowledged, lost or released."""

    def __init__(self, streams: Iterable[str]) -> None:
        self._held: dict[str, dict[str, RuntimeMessage]] = {stream: {} for stream in streams}
        self._survived = SeenIds()

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def of(self, stream: str) -> dict[str, RuntimeMessage]:
        """Return the held messages of one stream, by id: the live dict, not a copy."""
        return self._held[stream]

    def add(self, messages: Iterable[RuntimeMessage]) -> None:
        """Start extending the leases of these messages."""
        for message in messages:
            self._held[message.stream][message.id] = message

    def release(self, message: RuntimeMessage) -> None:
        """Stop extending a lease. No effect if it was released already or belongs to a newer delivery of the entry."""
        held = self._held[message.stream]
        if held.get(message.id) is message:
            del held[message.id]

    def release_all(self, stream: str, messages: Iterable[RuntimeMessage]) -> None:
        """Call ``release`` for many messages of one stream."""
        held = self._held[stream]
        for message in messages:
            if held.get(message.id) is message:
                del held[message.id]

    def note_survived(self, message: RuntimeMessage) -> None:
        """Record that the handler of this message raised an error: the message does not kill its process."""
        self._survived.add(message.stream, message.id)

    def has_survived(self, message: RuntimeMessage) -> bool:
        """True after ``note_survived`` for this entry."""
        return self._survived.is_known(message.stream, message.id)

    def snapshot(self) -> list[RuntimeMessage]:
        """Return a copy of the held messages. Safe from another thread."""
        return [message for held in self._held.values() for message in list(held.values())]


def due(messages: Iterable[RuntimeMessage], now: float, settings: RuntimeSettings) -> list[RuntimeMessage]:
    """Return the messages to extend: not recently extended, not lost, and held for at most ``max_lease_s``. Pure."""
    fresh = now - settings.heartbeat_s / 2
    return [
        message
        for message in messages
        if message.leased_at <= fresh
        and message.ownership in {Ownership.HELD, Ownership.SETTLING}
        and not is_overlong(message, now, settings)
    ]


def is_overlong(message: RuntimeMessage, now: float, settings: RuntimeSettings) -> bool:
    """True if the handler has run for more than ``max_lease_s``: other consumers may claim the message. Pure."""
    return bool(message.started_at) and now - message.started_at > settings.max_lease_s


def expired(messages: Iterable[RuntimeMessage], now: float, settings: RuntimeSettings) -> list[RuntimeMessage]:
    """Return overlong messages with an expired lease that is not reported as lost yet. Pure."""
    return [
        message
        for message in messages
        if is_overlong(message, now, settings)
        and message.ownership is Ownership.HELD
        and message.progress is HandlerState.RUNNING
        and now - message.leased_at > settings.claim_idle_s
    ]


def lease_lost(message: RuntimeMessage) -> LeaseLostError:
    """Return the error for a message that another consumer owns."""
    return LeaseLostError(
        f"message {message.id} of stream {printable(message.stream)!r} belongs to another consumer by now; "
        "it was not acknowledged here",
        stream=message.stream,
        message_id=message.id,
    )


class Heartbeat:
    """The thread. It calls the callbacks, which must pass the work on to the event loop.

    Args:
        servers: The servers of the streams.
        table: Messages under lease.
        group: The consumer group.
        consumer_id: Name of this consumer in it.
        settings: Interval of the extensions and maximum lease.
        on_lost: Called for each message that another consumer has claimed.
        on_error: Called with the driver's error when an extension failed.
        on_success: Called after each round without an error.
        name: The reservation of the consumer name, renewed with the leases.
        on_name_taken: Called if another engine has taken the name because this process was suspended for too long.
    """

    def __init__(  # noqa: PLR0913 - assembled in one place
        self,
        servers: Topology,
        table: LeaseTable,
        *,
        group: str,
        consumer_id: str,
        settings: RuntimeSettings,
        on_lost: Callable[[RuntimeMessage], None],
        on_error: Callable[[QueueError], None],
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
        # A daemon thread: a process that ends without stopping its engine must not wait for it.
        self._thread = threading.Thread(target=self._run, name="conquiet-lease", daemon=True)

    @property
    def is_alive(self) -> bool:
        """True while the thread runs and the last extension is recent enough to keep messages from becoming stale."""
        return self._thread.is_alive() and time.monotonic() - self._last_success < self._settings.claim_idle_s

    def start(self) -> None:
        """Start the thread."""
        self._last_success = time.monotonic()
        self._thread.start()

    async def stop(self, *, timeout_s: float) -> None:
        """Stop the thread, aborting its current call, and wait for it for at most ``timeout_s``.

        The thread is polled, because handlers may occupy every thread of the default executor.
        """
        self._stop.set()
        self._name.changed.set()
        deadline = time.monotonic() + timeout_s
        while self._thread.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)
            self._servers.abort()
        if self._thread.is_alive():
            # It is connecting, which cannot be aborted. It ends at the connect timeout.
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
                    return  # aborted by stop(); no lease is held any more
                if isinstance(error, QueueError):
                    self._on_error(error)
                else:
                    # A bug in conquiet. If the thread ended here, the engine would look healthy and lose its leases.
                    logger.failure(logging.ERROR, "lease heartbeat failed", error)
                # Retry sooner: a message may become stale after one more failed beat.
                pause_s = self._settings.heartbeat_s / 4
            else:
                self._last_success = time.monotonic()
                self._on_success()
                pause_s = self._settings.heartbeat_s

    def _wait(self, seconds: float) -> bool:
        """Wait for the next beat or an immediate renewal. Return True if the thread must end."""
        self._name.changed.wait(seconds)
        self._name.changed.clear()
        return self._stop.is_set()

    def beat(self, now: float) -> None:
        """Extend the due leases and report lost ones."""
        held = self._table.snapshot()
        for message in expired(held, now, self._settings):
            self._lose(message)
        by_stream: dict[str, list[RuntimeMessage]] = {}
        for message in due(held, now, self._settings):
            by_stream.setdefault(message.stream, []).append(message)
        batches: dict[SyncClient, list[LeaseChunk]] = {}
        failure: QueueError | None = None
        for stream, messages in by_stream.items():
            try:
                theirs = batches.setdefault(self._servers.client(stream), [])
            except QueueError as error:
                failure = error
            else:
                theirs += [(stream, messages[at : at + _BATCH]) for at in range(0, len(messages), _BATCH)]
        # Extend on nodes that timed out last, so that they do not delay the others.
        doubtful, self._doubtful = self._doubtful, set()
        for client in sorted(batches, key=doubtful.__contains__):
            try:
                self._extend(client, batches[client], time.monotonic())
            except QueueError as error:
                self._doubtful.add(client)
                failure = error
        if failure is not None:
            self._servers.refresh()
            raise failure

    def _extend(self, client: SyncClient, batches: list[LeaseChunk], now: float) -> None:
        # The script itself and not its digest: it is short, and the right to EVAL is all it takes.
        extensions = [
            ("EVAL", EXTEND_LEASE, "1", stream, *self._who, *(message.id for message in messages))
            for stream, messages in batches
        ]
        named = {"stream": ", ".join(dict(batches)), "group": self._who[0]}
        replies = commands_sync(client, extensions, action=_EXTENDING, **named, keep_errors=True)
        failure: QueueError | None = None
        for (stream, messages), kept_ids in zip(batches, replies, strict=True):
            if isinstance(
                kept_ids, RedisError | OSError
            ):  # concerns this stream only: the other replies are still used
                failure = translate(kept_ids, stream=stream, group=self._who[0], command=_EXTENDING)
                continue
            kept = {text(kept_id) for kept_id in kept_ids}
            for message in messages:
                if message.id in kept:
                    # The time before the call, because the server's idle time starts during it.
                    message.leased_at = now
                elif not message.has_ended:
                    self._lose(message)
        if failure is not None:
            raise failure

    def _lose(self, message: RuntimeMessage) -> None:
        # Set in this thread, so that a handler that blocks the event loop can see it.
        if message.lose():
            self._on_lost(message)
