"""RabbitMQ's dead-letter queues, for operators: look, put back, throw away.

AMQP cannot look without taking: a look takes messages and hands them back, and the broker puts them where they
were, marked as redelivered. A quorum queue deletes what is handed back beyond its delivery limit: such a queue is
looked into only on demand, or not at all, see ``conquiet.management.looking``. (It also puts what was handed back
behind what was handed back before, so the order may change there.)
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any, Final

from conquiet.errors import RabbitError
from conquiet.management.looking import FREE, Cost, cost_of_a_look
from conquiet.management.models import Facts
from conquiet.management.rabbit_api import management_url


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

    A look into it, and a filter (AMQP has none: all are taken, and the others handed back), raise
    :class:`CountedLookError` before anything is taken if the queue would count it, unless that is allowed, or if a look
    would delete messages.

    Args:
        url: The broker.
        queue: The queue that rejected messages end in.
        api_url: The broker's management API, which knows the queue's delivery limit; empty is where it usually is.
        count_a_delivery: Allow it. What the next look would delete ends this one with the same error.
    """

    def __init__(self, url: str, queue: str, *, api_url: str = "", count_a_delivery: bool = False) -> None:
        self._url = url
        self._queue = queue
        self._api_url = api_url or management_url(url)
        self._count_a_delivery = count_a_delivery

    def peek(self, *, limit: int | None, where: DeliveryFilter = EVERYTHING) -> list[DeadDelivery]:
        """Return the first ``limit`` messages that are meant, None is all of them; all stay where they are."""
        found: list[DeadDelivery] = []

        def visit(one: DeadDelivery) -> bool:
            if where.takes(one):
                found.append(one)
            return False

        self._walk(visit, done=lambda: len(found) == limit)
        return found

    def show(self, letter: str) -> DeadDelivery | None:
        """Return the first message with this message id or, if none has it, the one at this position; None without."""
        named: list[DeadDelivery] = []
        there: list[DeadDelivery] = []

        def visit(one: DeadDelivery) -> bool:
            if one.message_id == letter:
                named.append(one)
            elif str(one.position) == letter:
                there.append(one)
            return False

        self._walk(visit, done=lambda: bool(named))  # once for both: each way through may be counted
        return next(iter(named + there), None)

    def groups(self) -> list[dict[str, Any]]:
        """Return what they died of and where, most frequent first."""
        counts: Counter[tuple[str, str]] = Counter()

        def visit(one: DeadDelivery) -> bool:
            counts[one.source, one.reason] += 1
            return False

        self._walk(visit, done=lambda: False)
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
        from conquiet.rabbit.dead_letters import source_queue
        from conquiet.rabbit.intake import delivery_count

        positions = count(1)

        async def run() -> tuple[int, int]:
            # Without a filter nothing is handed back but what says no source.
            cost = FREE if to and where == EVERYTHING else await self._cost(refuse=where != EVERYTHING)

            def chosen(message: Any) -> bool:
                takes = where.takes(_described(next(positions), message))
                if not takes or not (to or source_queue(message.headers)):
                    cost.check(self._queue, delivery_count(message.headers))
                return takes

            done = await DeadLetters(self._url).replay(
                self._queue,
                to=to,
                limit=limit,
                per_second=per_second,
                progress=on_progress,
                chosen=chosen,
                count_a_delivery=True,  # we know the limit, and have asked already
            )
            return done.replayed, done.skipped

        return asyncio.run(run())

    def discard(self, *, limit: int | None, where: DeliveryFilter = EVERYTHING) -> int:
        """Delete the first ``limit`` messages that are meant, or all of them that were there at the start, for good."""
        taken = 0

        def visit(one: DeadDelivery) -> bool:
            nonlocal taken
            taken += where.takes(one)
            return where.takes(one)

        self._walk(visit, done=lambda: taken == limit, keeps_none=where == EVERYTHING)
        return taken

    def _walk(
        self, visit: Callable[[DeadDelivery], bool], *, done: Callable[[], bool], keeps_none: bool = False
    ) -> None:
        """Show those there are now to ``visit``, from the front, until it is done. It says True of what is deleted."""
        from conquiet.rabbit.intake import delivery_count

        async def run() -> None:
            cost = FREE if keeps_none else await self._cost(refuse=True)
            link = await self._link()
            kept: list[int] = []
            try:
                depth = await link.depth(self._queue)
                for position in range(1, depth + 1):
                    if done() or (message := await link.fetch(self._queue)) is None:
                        break
                    if not visit(_described(position, message)):
                        kept.append(message.tag)
                        cost.check(self._queue, delivery_count(message.headers))
                    elif not link.ack(singles=(message.tag,)):
                        gone = position - 1 - len(kept)
                        raise RabbitError(
                            f"the connection was lost after {gone} were discarded; the others are still there",
                            queue=self._queue,
                        )
            finally:
                for tag in kept:
                    link.hand_back(tag)  # the end of the channel would do it too, and is counted by newer brokers
                await link.close_channel()
                await link.close()

        asyncio.run(run())

    async def _cost(self, *, refuse: bool) -> Cost:
        link = await self._link()
        try:
            depth = await link.depth(self._queue)  # a queue that is missing is said before anything else
        finally:
            await link.close()
        cost = await cost_of_a_look(self._url, self._api_url, self._queue) if depth else FREE
        if refuse and (cost.deadly or not self._count_a_delivery):
            cost.refuse(self._queue)
        return cost

    async def _link(self) -> Any:
        from conquiet.rabbit.address import Address
        from conquiet.rabbit.connection import Link

        return await Link.open(Address((self._url,), name="conquiet.operator"))


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
