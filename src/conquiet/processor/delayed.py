"""Move messages to their stream when they are due. Every host polls; each message is moved once.

    emit(delay_s=…) ─┐                                 ┌─▶ stream
    retry ───────────┴─▶ delayed set ──poll, on time ──┘

A promoter sleeps until the earliest known due time. An emitter that adds an earlier message writes a wake-up into
a small stream that every promoter reads with BLOCK. That stream is read by position, so a wake-up between two reads is
not missed. A promoter also polls at least once per ``refresh_s``, which covers hosts that ended. Quiet streams are
polled up to eight times less often, round-robin, because emitting, pausing and cancelling write a wake-up.

See docs/decisions/0016.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.errors import QueueError
from conquiet.metrics.outages import OutageWatch
from conquiet.metrics.registry import (
    PROCESSOR_DEAD_LETTER_AGE_SECONDS,
    PROCESSOR_DEAD_LETTERS,
    PROCESSOR_DELAYED,
    PROCESSOR_PROMOTED_TOTAL,
    PROCESSOR_PROMOTION_ERRORS_TOTAL,
)
from conquiet.metrics.safety import count, set_gauge
from conquiet.processor.keys import Keys
from conquiet.processor.policy import LONGEST_MS
from conquiet.processor.scripts import script
from conquiet.redis_transport.client import AsyncClient, is_cluster
from conquiet.redis_transport.client_commands import command
from conquiet.redis_transport.connect_errors import address_of
from conquiet.redis_transport.ids import milliseconds_of
from conquiet.redis_transport.replies import as_mapping, streams_read
from conquiet.redis_transport.routing import split_by_slot

logger = FactLogger(__name__)

_BLOCK_MS = 8_000
"""Shorter than the socket timeout (``SOCKET_TIMEOUT_S``)."""
_ERROR_PAUSE_S = 0.5
_QUIET_PERIODS = 8
"""Maximum number of ``refresh_s`` periods between two polls of a quiet stream."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Result of one poll of a stream's delayed set, pauses and dead letters.

    Attributes:
        moved: Due messages that the poll moved to the stream.
        next_due_ms: When the next message is due. None if none is delayed.
        now_ms: The server's clock.
        ahead_ms: How far the server's clock is ahead of this host's; 0 if the round trip explains the difference.
        wake_id: Position of the last wake-up.
        paused: Paused events (``*`` for the stream), with the start of the pause.
        parked: Events with parked messages.
        waiting: Messages in the delayed set.
        dead: Dead letters.
        oldest_dead_ms: When the oldest dead letter was written. None if there is none.
        moving: Messages that now belong to another partition.
        order_group: The group that settles messages with a key. None if no message has had a key.
        cancel_requests: Open cancellation requests for workers.
    """

    moved: int
    next_due_ms: int | None
    now_ms: int
    ahead_ms: int
    wake_id: str
    paused: Mapping[str, int]
    parked: frozenset[str]
    waiting: int
    dead: int
    oldest_dead_ms: int | None
    order_group: str | None = None
    moving: int = 0
    cancel_requests: int = 0

    @property
    def is_quiet(self) -> bool:
        """True if the poll changed nothing and only a wake-up can change that."""
        return not (self.moved or self.waiting or self.paused or self.parked or self.moving or self.cancel_requests)


async def promote_due(client: AsyncClient, keys: Keys, *, limit: int) -> Poll:
    """Move at most ``limit`` due messages and read pauses and counts, in one atomic step.

    Raises:
        QueueError: The server returned an error or did not reply.
    """
    names = (keys.stream, keys.delayed, keys.wake, keys.paused, keys.parked, keys.dead, keys.order, keys.cancel)
    asked_ms = time.time() * 1000
    reply = await script("promote_due").call(client, names, (limit,), stream=keys.stream)
    answered_ms = time.time() * 1000
    moved, due, now, wake_id, paused, parked, waiting, dead, oldest, owner, moving, cancel_requests = reply
    return Poll(
        moved=moved,
        next_due_ms=int(min(float(due), LONGEST_MS)) if due else None,
        now_ms=int(now),
        ahead_ms=clock_difference(int(now), asked_ms, answered_ms),
        wake_id=wake_id.decode(),
        paused=read_pauses(paused),
        parked=frozenset(event.decode(errors="backslashreplace") for event in parked),
        waiting=waiting,
        dead=dead,
        oldest_dead_ms=milliseconds_of(oldest.decode()) if oldest else None,
        order_group=owner.decode(errors="backslashreplace") or None,
        moving=moving,
        cancel_requests=cancel_requests,
    )


def read_pauses(reply: Sequence[bytes]) -> dict[str, int]:
    """Return the pauses and their start times. A pause set by hand may have any value."""
    return {
        what.decode(errors="backslashreplace"): int(since) if since.isdigit() else 0
        for what, since in as_mapping(reply).items()
    }


def clock_difference(server_ms: int, asked_ms: float, answered_ms: float) -> int:
    """Return how far the server's clock is ahead of this host's, read before and after the call."""
    if asked_ms - 1 <= server_ms <= answered_ms:
        return 0  # the server rounds down
    return round(server_ms - (asked_ms + answered_ms) / 2)


PollListener = Callable[[Keys, Poll], Awaitable[None] | None]
"""Called with the result of a poll."""


class DelayedPromoter:
    """Moves due messages for one host.

    Args:
        client: A client without retries. The caller closes it.
        keys: The streams.
        limit: Maximum number of messages moved in one step, because a step blocks the server.
        refresh_s: Longest sleep, up to eight times as long for a quiet stream.
        listeners: Called in order with the result of each poll, before the next poll.
        maintain: Called once per ``refresh_s``, even if no stream is polled. It must not block.
    """

    def __init__(
        self,
        client: AsyncClient,
        keys: Sequence[Keys],
        *,
        limit: int,
        refresh_s: float,
        listeners: Sequence[PollListener],
        maintain: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._address = address_of(getattr(client, "connection_pool", None))
        self._keys = {one.wake: one for one in keys}
        self._limit = limit
        self._refresh_s = refresh_s
        # The first pause differs between streams, so that some stream is polled in every period.
        self._quiet_s = _QUIET_PERIODS * refresh_s
        self._first_quiet_s = {one.stream: (1 + at % _QUIET_PERIODS) * refresh_s for at, one in enumerate(keys)}
        self._listeners = listeners
        self._maintain = maintain
        self._woken = {one.stream: asyncio.Event() for one in keys}
        self._positions = dict.fromkeys(self._keys, "$")
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False

    async def start(self) -> None:
        """Poll every stream once, so that pauses are known, then continue in the background.

        Raises:
            QueueError: The first poll failed.
        """
        for keys in self._keys.values():
            await self._poll(keys)
        self._tasks = [
            asyncio.create_task(self._serve(keys), name=f"conquiet-due-{keys.stream}") for keys in self._keys.values()
        ]
        self._tasks.append(asyncio.create_task(self._maintain_in_turn(), name="conquiet-maintain"))
        for wakes in split_by_slot(list(self._keys), in_cluster=is_cluster(self._client)):
            self._tasks.append(asyncio.create_task(self._listen(wakes), name="conquiet-due-wake"))

    async def close(self) -> None:
        """Stop the background tasks. A step under way may still take effect; it is atomic."""
        self._closing = True
        waiting = set(self._tasks)
        while waiting:
            for task in waiting:
                task.cancel()
            # Cancel repeatedly: a client library that turns a cancellation into a timeout swallows it.
            _, waiting = await asyncio.wait(waiting, timeout=0.2)

    async def _maintain_in_turn(self) -> None:
        while not self._closing:
            await asyncio.sleep(self._refresh_s)
            try:
                self._maintain()
            except Exception as error:  # noqa: BLE001 - the next call makes up for it
                logger.failure(logging.WARNING, "maintenance of a processor failed", error)

    async def _serve(self, keys: Keys) -> None:
        stops = f"nothing is read from {printable(keys.stream)}, nor are delayed messages moved to it"
        with contextlib.closing(OutageWatch("Redis", stops)) as outage:
            await self._serve_with(keys, self._woken[keys.stream], outage)

    async def _serve_with(self, keys: Keys, woken: asyncio.Event, outage: OutageWatch) -> None:
        sleep_s = 0.0
        while not self._closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(sleep_s):
                    await woken.wait()
            woken.clear()
            try:
                sleep_s = await self._poll(keys)
            except Exception as error:  # noqa: BLE001 - the task must survive, or messages would be late unnoticed
                count(PROCESSOR_PROMOTION_ERRORS_TOTAL, keys.stream)
                if isinstance(error, QueueError):
                    outage.failed(error, address=self._address)
                else:
                    logger.failure(logging.WARNING, "polling for due messages failed", error, stream=keys.stream)
                sleep_s = _ERROR_PAUSE_S
            else:
                outage.succeeded()

    async def _poll(self, keys: Keys) -> float:
        """Move all due messages. Return how long to sleep."""
        while True:
            asked_at = time.monotonic()
            found = await promote_due(self._client, keys, limit=self._limit)
            if self._positions[keys.wake] == "$":
                self._positions[keys.wake] = found.wake_id
            _observe(keys.stream, found)
            for listener in self._listeners:
                if (waiting := listener(keys, found)) is not None:
                    await waiting
            if found.moved < self._limit:
                break
        if found.is_quiet:
            return self._first_quiet_s.pop(keys.stream, self._quiet_s)
        if found.next_due_ms is None:
            return self._refresh_s
        # Counted from before the call: the round trip is part of the wait. One millisecond more,
        # because the server rounds its clock down.
        due_s = (found.next_due_ms - found.now_ms + 1) / 1000 - (time.monotonic() - asked_at)
        return min(max(due_s, 0.0), self._refresh_s)

    async def _listen(self, wakes: Sequence[str]) -> None:
        """Wait for wake-ups of several streams with one command. It changes nothing, so it may be cancelled."""
        while not self._closing:
            try:
                positions = [self._positions[wake] for wake in wakes]
                read = ("XREAD", "BLOCK", str(_BLOCK_MS), "STREAMS", *wakes, *positions)
                reply = await command(self._client, *read, blocking=True)
            except QueueError:
                # The promoters poll every refresh_s anyway; they also count and log errors.
                await asyncio.sleep(_ERROR_PAUSE_S)
                continue
            for name, entries in streams_read(reply):
                wake = name.decode()
                self._positions[wake] = entries[-1][0].decode()
                self._woken[self._keys[wake].stream].set()


def _observe(stream: str, found: Poll) -> None:
    count(PROCESSOR_PROMOTED_TOTAL, stream, n=found.moved)
    set_gauge(PROCESSOR_DELAYED, stream, value=found.waiting)
    set_gauge(PROCESSOR_DEAD_LETTERS, stream, value=found.dead)
    age_ms = 0 if found.oldest_dead_ms is None else max(0, found.now_ms - found.oldest_dead_ms)
    set_gauge(PROCESSOR_DEAD_LETTER_AGE_SECONDS, stream, value=age_ms / 1000)
