"""Moving messages to their stream when they are due, on every host, each message once.

    emit(delay=…) ─┐                                 ┌─▶ stream
    retry ─────────┴─▶ delayed set ──tick, on time ──┘

A mover sleeps until the first due time it knows of. Who puts an earlier message in writes a wake-up into
a small stream that every mover waits on, so nobody polls for it; that stream is read by position, so a
wake-up that came between two reads is not missed. At least once per ``refresh_s`` a mover looks anyway:
that is what takes over from a host that died, and the whole cost of an idle one.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from conquiet.kernel.redaction import printable
from conquiet.metrics.registry import (
    PROCESSOR_DEAD_LETTER_AGE_SECONDS,
    PROCESSOR_DEAD_LETTERS,
    PROCESSOR_DELAYED,
    PROCESSOR_MOVED_TOTAL,
    PROCESSOR_MOVER_ERRORS_TOTAL,
    never_raises,
)
from conquiet.processor.keys import Keys
from conquiet.processor.policy import FOR_EVER_MS
from conquiet.processor.scripts import script

logger = logging.getLogger(__name__)

_BLOCK_MS = 5_000
_ERROR_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Tick:
    """What one look at a stream's surroundings found.

    Attributes:
        moved: Due messages moved to the stream by it.
        next_due_ms: When the next one is due; None if none waits.
        now_ms: The server's clock.
        ahead_ms: How far it is ahead of ours; 0 if the answer's way explains the difference.
        wake_id: Position of the last wake-up.
        paused: What is paused, with the time since when.
        parked: Events that have messages parked.
        waiting: Messages in the delayed set.
        dead: Dead letters.
        oldest_dead_ms: When the oldest dead letter was written; None if there is none.
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


async def tick(client: redis.asyncio.Redis, keys: Keys, *, limit: int) -> Tick:
    """Move at most ``limit`` due messages and look around, in one atomic step.

    Raises:
        QueueError: The server refused or did not answer.
    """
    names = (keys.stream, keys.delayed, keys.wake, keys.paused, keys.parked, keys.dead)
    asked_ms = time.time() * 1000
    reply = await script("tick").call(client, names, (limit,), stream=keys.stream)
    answered_ms = time.time() * 1000
    moved, due, now, wake_id, paused, parked, waiting, dead, oldest = reply
    return Tick(
        moved=moved,
        next_due_ms=int(min(float(due), FOR_EVER_MS)) if due else None,
        now_ms=int(now),
        ahead_ms=clock_difference(int(now), asked_ms, answered_ms),
        wake_id=wake_id.decode(),
        paused=read_pauses(paused),
        parked=frozenset(event.decode(errors="backslashreplace") for event in parked),
        waiting=waiting,
        dead=dead,
        oldest_dead_ms=int(oldest.split(b"-")[0]) if oldest else None,
    )


def read_pauses(reply: Sequence[bytes]) -> dict[str, int]:
    """Return what is paused and since when. A pause that somebody set by hand, with whatever value, is one, too."""
    return {
        what.decode(errors="backslashreplace"): int(since) if since.isdigit() else 0
        for what, since in zip(reply[::2], reply[1::2], strict=True)
    }


def clock_difference(server_ms: int, asked_ms: float, answered_ms: float) -> int:
    """Return how far the server's clock is ahead of ours, which was read before and after the server's was."""
    if asked_ms - 1 <= server_ms <= answered_ms:
        return 0  # it rounds down
    return round(server_ms - (asked_ms + answered_ms) / 2)


class Mover:
    """Keeps one host's streams supplied with what is due.

    Args:
        client: A client without retries; it stays the caller's.
        keys: The streams.
        limit: Most messages moved in one step: the server does nothing else meanwhile.
        refresh_s: Longest sleep.
        on_tick: Told what each look found, before the next one.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Sequence[Keys],
        *,
        limit: int,
        refresh_s: float,
        on_tick: Callable[[Keys, Tick], Awaitable[None]],
    ) -> None:
        self._client = client
        self._keys = {one.wake: one for one in keys}
        self._limit = limit
        self._refresh_s = refresh_s
        self._on_tick = on_tick
        self._woken = {one.stream: asyncio.Event() for one in keys}
        self._positions = dict.fromkeys(self._keys, "$")
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False

    async def start(self) -> None:
        """Look once at every stream, so that pauses are known, and go on in the background.

        Raises:
            QueueError: The first look failed.
        """
        for keys in self._keys.values():
            await self._look(keys)
        self._tasks = [
            asyncio.create_task(self._serve(keys), name=f"conquiet-mover-{keys.stream}") for keys in self._keys.values()
        ]
        self._tasks.append(asyncio.create_task(self._listen(), name="conquiet-mover-wake"))

    async def close(self) -> None:
        """End the background work. A step under way may still happen; it is atomic."""
        self._closing = True
        waiting = set(self._tasks)
        while waiting:
            for task in waiting:
                task.cancel()
            # Asked again now and then: a client library that turns a cancellation into a timeout swallows it.
            _, waiting = await asyncio.wait(waiting, timeout=0.2)

    async def _serve(self, keys: Keys) -> None:
        woken = self._woken[keys.stream]
        sleep_s = 0.0
        while not self._closing:
            try:
                async with asyncio.timeout(sleep_s):
                    await woken.wait()
            except TimeoutError:
                pass
            woken.clear()
            try:
                sleep_s = await self._look(keys)
            except Exception as error:  # noqa: BLE001 - a mover that died would be missed only when messages are late
                _count_error(keys.stream)
                logger.warning(
                    "looking for due messages failed",
                    extra={"stream": printable(keys.stream), "error": type(error).__name__},
                )
                sleep_s = _ERROR_PAUSE_S

    async def _look(self, keys: Keys) -> float:
        """Move all that is due; return how long to sleep."""
        while True:
            asked_at = time.monotonic()
            found = await tick(self._client, keys, limit=self._limit)
            if self._positions[keys.wake] == "$":
                self._positions[keys.wake] = found.wake_id
            _observe(keys.stream, found)
            await self._on_tick(keys, found)
            if found.moved < self._limit:
                break
        if found.next_due_ms is None:
            return self._refresh_s
        # Counted from before the call: the answer's way back is part of the wait. One millisecond more,
        # because the server rounds its clock down.
        due_s = (found.next_due_ms - found.now_ms + 1) / 1000 - (time.monotonic() - asked_at)
        return min(max(due_s, 0.0), self._refresh_s)

    async def _listen(self) -> None:
        """Wait for wake-ups of all streams with one command. It changes nothing, so it may be cancelled."""
        while not self._closing:
            try:
                reply: Any = await self._client.execute_command(  # type: ignore[no-untyped-call]
                    "XREAD", "BLOCK", _BLOCK_MS, "STREAMS", *self._positions, *self._positions.values()
                )
            except (RedisError, OSError):
                # The movers look by themselves every refresh_s; they also count and log what is wrong.
                await asyncio.sleep(_ERROR_PAUSE_S)
                continue
            for name, entries in _pairs(reply):
                wake = name.decode()
                self._positions[wake] = entries[-1][0].decode()
                self._woken[self._keys[wake].stream].set()


def _pairs(reply: Any) -> list[tuple[bytes, Any]]:
    """The streams of an XREAD reply: redis-py 6 and 7 give a list, 8 may give a mapping."""
    if not reply:
        return []
    return list(reply.items()) if isinstance(reply, dict) else [(name, entries) for name, entries in reply]


@never_raises
def _observe(stream: str, found: Tick) -> None:
    if found.moved:
        PROCESSOR_MOVED_TOTAL.labels(stream).inc(found.moved)
    PROCESSOR_DELAYED.labels(stream).set(found.waiting)
    PROCESSOR_DEAD_LETTERS.labels(stream).set(found.dead)
    age_ms = 0 if found.oldest_dead_ms is None else max(0, found.now_ms - found.oldest_dead_ms)
    PROCESSOR_DEAD_LETTER_AGE_SECONDS.labels(stream).set(age_ms / 1000)


@never_raises
def _count_error(stream: str) -> None:
    PROCESSOR_MOVER_ERRORS_TOTAL.labels(stream).inc()
