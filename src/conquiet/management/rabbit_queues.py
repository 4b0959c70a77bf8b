"""RabbitMQ's dead-letter queues, for operators: look, put back, throw away.

AMQP cannot look without taking: a look takes messages, leaves them unsettled and closes, and the broker
puts them back where they were, marked as redelivered.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any, Final, TypeVar

from conquiet.errors import RabbitError
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
        exchange: Where it was published before it died.
        routing_key: With which key.
        headers: Names of its headers. What they say may be personal data.
        deaths: All its deaths, the newest first.
        body: What is in it. Not part of ``repr()``, and printed only on request.
    """

    position: int
    message_id: str
    source: str
    reason: str
    count: int
    size_bytes: int
    exchange: str
    routing_key: str
    content_type: str
    headers: list[str]
    deaths: list[dict[str, Any]]
    body: bytes

    def __repr__(self) -> str:
        return f"DeadDelivery(position={self.position}, source={self.source!r}, reason={self.reason!r})"


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """Which messages of a dead-letter queue are meant. What is None does not matter.

    There is no filter by position: by the time something is done, another message may stand there.
    """

    message_id: str | None = None
    source: str | None = None
    reason: str | None = None

    def takes(self, one: DeadDelivery) -> bool:
        """Say whether it is one of those."""
        return (
            (self.message_id is None or one.message_id == self.message_id)
            and (self.source is None or one.source == self.source)
            and (self.reason is None or one.reason == self.reason)
        )


EVERYTHING: Final = DeliveryFilter()


class QueueDeadLetters:
    """One dead-letter queue.

    Args:
        url: The broker.
        queue: The queue that rejected messages end in.
    """

    def __init__(self, url: str, queue: str) -> None:
        self._url = url
        self._queue = queue

    def peek(self, *, limit: int, where: DeliveryFilter = EVERYTHING) -> list[DeadDelivery]:
        """Return the first ``limit`` messages that are meant; all stay where they are."""

        async def look(link: Any, depth: int) -> list[DeadDelivery]:
            found: list[DeadDelivery] = []
            for position in range(1, depth + 1):
                if len(found) >= limit or (message := await link.fetch(self._queue)) is None:
                    break
                one = _described(position, message)
                if where.takes(one):
                    found.append(one)
            return found

        return self._with(look)

    def show(self, letter: str) -> DeadDelivery | None:
        """Return the first message with this message id or, if none has it, the one at this position; None without."""
        found = self.peek(limit=1, where=DeliveryFilter(message_id=letter))
        if found or not letter.isdecimal():
            return found[0] if found else None
        return next((one for one in self.peek(limit=int(letter)) if one.position == int(letter)), None)

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
        where: DeliveryFilter = EVERYTHING,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> tuple[int, int]:
        """Put messages back to where they died, or to ``to``. Returns how many, and how many say no source."""
        from conquiet.rabbit import DeadLetters

        positions = count(1)
        done = asyncio.run(
            DeadLetters(self._url).replay(
                self._queue,
                to=to,
                limit=limit,
                per_second=per_second,
                progress=on_progress,
                chosen=lambda message: where.takes(_described(next(positions), message)),
            )
        )
        return done.replayed, done.skipped

    def depth(self) -> int:
        """Return how many there are."""

        async def ask(_link: Any, depth: int) -> int:
            return depth

        return self._with(ask)

    def discard(self, *, limit: int | None, where: DeliveryFilter = EVERYTHING) -> int:
        """Delete the first ``limit`` messages that are meant, or all of them that were there at the start, for good."""

        async def take(link: Any, depth: int) -> int:
            taken = 0
            for position in range(1, depth + 1):
                if taken == limit or (message := await link.fetch(self._queue)) is None:
                    break
                if where.takes(_described(position, message)):
                    if not link.ack(singles=(message.tag,)):
                        raise RabbitError(
                            f"the connection was lost after {taken} were discarded; the others are still there",
                            queue=self._queue,
                        )
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
    told = [death for death in deaths if isinstance(death, Mapping)] if isinstance(deaths, list) else []
    newest: Mapping[str, Any] = told[0] if told else {}
    often = newest.get("count")
    keys = newest.get("routing-keys")
    return DeadDelivery(
        position=position,
        message_id=str(message.properties.message_id or ""),
        source=str(newest.get("queue", "")),
        reason=str(newest.get("reason", "")),
        count=often if isinstance(often, int) else 0,
        size_bytes=len(message.body),
        exchange=str(newest.get("exchange", "")),
        routing_key=str(keys[0]) if isinstance(keys, list) and keys else "",
        content_type=str(message.properties.content_type or ""),
        headers=sorted(str(name) for name in headers if not str(name).startswith("x-")),
        deaths=[_death(one) for one in told],
        body=message.body,
    )


def _death(told: Mapping[str, Any]) -> dict[str, Any]:
    when = told.get("time")
    return {
        "queue": str(told.get("queue", "")),
        "reason": str(told.get("reason", "")),
        "count": told.get("count", 0),
        "time": when.isoformat() if isinstance(when, datetime) else None,
    }
