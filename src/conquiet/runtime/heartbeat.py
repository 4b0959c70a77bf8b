"""The thread that extends the leases of messages.

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
from collections.abc import Callable
from dataclasses import dataclass

from conquiet.core.log import FactLogger
from conquiet.errors import QueueError
from conquiet.redis_transport.client import SyncClient
from conquiet.redis_transport.client_commands import commands_sync
from conquiet.redis_transport.errors import RedisError, translate
from conquiet.redis_transport.replies import text
from conquiet.redis_transport.stream_scripts import EXTEND_LEASE
from conquiet.runtime.lease_table import due, expired
from conquiet.runtime.message import RuntimeMessage
from conquiet.runtime.name_reservation import RENEW_S, NameReservation
from conquiet.runtime.parts import EngineParts

logger = FactLogger(__name__)

LeaseChunk = tuple[str, list[RuntimeMessage]]
"""A stream, and some of its messages."""

_EXTENDING = "XCLAIM"
_LOOK_S = 0.01
_BATCH = 250
"""Ids per script call. A call blocks the server for about a millisecond."""


@dataclass(frozen=True, slots=True)
class HeartbeatCallbacks:
    """Functions that the thread calls. They must pass the work on to the event loop.

    Attributes:
        lost: Called for each message that another consumer has claimed.
        failed: Called with the error when an extension failed.
        succeeded: Called after each round without an error.
        name_taken: Called if another engine has taken the name because this process was suspended for too long.
    """

    lost: Callable[[RuntimeMessage], None]
    failed: Callable[[QueueError], None]
    succeeded: Callable[[], None]
    name_taken: Callable[[QueueError], None]


class Heartbeat:
    """The thread.

    Args:
        parts: The parts that all parts of the engine share: the servers, the messages under lease, the settings.
        name: The reservation of the consumer name, renewed with the leases.
        callbacks: Called in the thread.
    """

    def __init__(self, parts: EngineParts, name: NameReservation, callbacks: HeartbeatCallbacks) -> None:
        self._name = name
        self._callbacks = callbacks
        self._servers, self._table, self._settings = parts.topology, parts.table, parts.settings
        self._who = (parts.group, parts.consumer_id)
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
                    self._callbacks.name_taken(taken)
            except Exception as error:  # noqa: BLE001 - see below
                if self._stop.is_set():
                    return  # aborted by stop(); no lease is held any more
                if isinstance(error, QueueError):
                    self._callbacks.failed(error)
                else:
                    # A bug in conquiet. If the thread ended here, the engine would look healthy and lose its leases.
                    logger.failure(logging.ERROR, "lease heartbeat failed", error)
                # Retry sooner: a message may become stale after one more failed beat.
                pause_s = self._settings.heartbeat_s / 4
            else:
                self._last_success = time.monotonic()
                self._callbacks.succeeded()
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
            if isinstance(kept_ids, RedisError | OSError):  # of this stream only: the other replies are still used
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
            self._callbacks.lost(message)
