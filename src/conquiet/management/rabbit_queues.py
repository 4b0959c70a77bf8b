"""RabbitMQ's dead-letter queues, for operators: look, put back, throw away.

AMQP cannot look without taking: a look takes messages, leaves them unsettled and closes, and the broker
puts them back where they were, marked as redelivered.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from conquiet.management.models import Facts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeadDelivery(Facts):
    """One message of a dead-letter queue.

    Attributes:
        position: Its place from the front, from 1.
        source: The queue it died in, if it says.
        reason: ``rejected``, ``expired``, ``maxlen`` or ``delivery_limit``.
        count: How often it died of that there.
        body: What is in it. Not part of ``repr()``, and printed only on request.
    """

    position: int
    message_id: str
    source: str
    reason: str
    count: int
    size_bytes: int
    body: bytes

    def __repr__(self) -> str:
        return f"DeadDelivery(position={self.position}, source={self.source!r}, reason={self.reason!r})"


class QueueDeadLetters:
    """One dead-letter queue.

    Args:
        url: The broker.
        queue: The queue that rejected messages end in.
    """

    def __init__(self, url: str, queue: str) -> None:
        self._url = url
        self._queue = queue

    def peek(self, *, limit: int) -> list[DeadDelivery]:
        """Return the first ``limit`` messages; they stay where they are."""

        async def look(link: Any, depth: int) -> list[DeadDelivery]:
            found: list[DeadDelivery] = []
            while len(found) < min(limit, depth) and (message := await link.fetch(self._queue)) is not None:
                found.append(_described(len(found) + 1, message))
            return found

        return self._with(look)

    def groups(self, *, limit: int = 10_000) -> list[dict[str, Any]]:
        """Return what the first ``limit`` died of and where, most frequent first."""
        counts = Counter((one.source, one.reason) for one in self.peek(limit=limit))
        return [
            {"source": source, "reason": reason, "count": count} for (source, reason), count in counts.most_common()
        ]

    def replay(
        self,
        *,
        to: str | None,
        limit: int | None,
        per_second: float | None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> tuple[int, int]:
        """Put messages back to where they died, or to ``to``. Returns how many, and how many say no source."""
        from conquiet.rabbit import DeadLetters

        done = asyncio.run(
            DeadLetters(self._url).replay(self._queue, to=to, limit=limit, per_second=per_second, progress=on_progress)
        )
        return done.replayed, done.skipped

    def depth(self) -> int:
        """Return how many there are."""

        async def ask(_link: Any, depth: int) -> int:
            return depth

        return self._with(ask)

    def discard(self, *, limit: int | None) -> int:
        """Delete the first ``limit`` messages, or all there were at the start, for good."""

        async def take(link: Any, depth: int) -> int:
            taken, wanted = 0, depth if limit is None else min(limit, depth)
            while taken < wanted and (message := await link.fetch(self._queue)) is not None:
                link.ack(message.tag)
                taken += 1
            return taken

        return self._with(take)

    def _with(self, work: Callable[[Any, int], Awaitable[T]]) -> T:
        from conquiet.rabbit.address import Address
        from conquiet.rabbit.connection import Link

        async def run() -> T:
            link = await Link.open(Address((self._url,), name="conquiet.operator"))
            try:
                return await work(link, await link.depth(self._queue))
            finally:
                await link.close_channel()
                await link.close()

        return asyncio.run(run())


def _described(position: int, message: Any) -> DeadDelivery:
    headers = message.headers if isinstance(message.headers, Mapping) else {}
    deaths = headers.get("x-death")
    newest = deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], Mapping) else {}
    count = newest.get("count")
    return DeadDelivery(
        position=position,
        message_id=str(message.properties.message_id or ""),
        source=str(newest.get("queue", "")),
        reason=str(newest.get("reason", "")),
        count=count if isinstance(count, int) else 0,
        size_bytes=len(message.body),
        body=message.body,
    )
