"""List, show, replay and discard the messages of a dead-letter queue.

A replay publishes each message to its source queue, waits for the confirmation and only then acknowledges it in the
dead-letter queue. A crash in between leaves it in both: a duplicate is preferred to a loss.

AMQP cannot read a message without taking it. Unacknowledged messages are released at the end, and the broker puts them
back in their place, marked as redelivered. (A quorum queue puts a message behind the ones released before, so the order
may change.) A quorum queue deletes a message that is released more often than its delivery limit; see
``conquiet.rabbit.peek_safety`` and docs/decisions/0023.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from conquiet.core.clock import SYSTEM_CLOCK, Clock
from conquiet.core.log import FactLogger
from conquiet.core.replay_report import ReplayReport
from conquiet.core.throttle import Throttle
from conquiet.core.validation import require_selection, require_text
from conquiet.errors import PublishError, RabbitError
from conquiet.rabbit.address import Address, as_urls, require_name
from conquiet.rabbit.any_node import open_on_any_node
from conquiet.rabbit.confirms import Encoded
from conquiet.rabbit.connection import Fetched
from conquiet.rabbit.dead_delivery import (
    EVERYTHING,
    DeadDelivery,
    DeliveryCause,
    DeliveryFilter,
    describe,
    original_key,
    source_queue,
)
from conquiet.rabbit.dead_letter_headers import HEADERS as MOVED_HEADERS
from conquiet.rabbit.dead_letter_headers import read_move_record
from conquiet.rabbit.death_headers import NOT_SENT_AGAIN, X_DEATH, delivery_count
from conquiet.rabbit.peek_safety import FREE, PeekCost, find_peek_cost
from conquiet.rabbit.properties import renewed_properties
from conquiet.rabbit.publisher import Publisher
from conquiet.rabbit.replay_exchanges import PREFIX, TemporaryExchanges
from conquiet.rabbit.taken_messages import TakenMessages

logger = FactLogger(__name__)

# Headers about earlier deaths. If they were kept, the retry limit would drop the message at its first delivery.
_HISTORY: Final = (
    *NOT_SENT_AGAIN,
    X_DEATH,
    *MOVED_HEADERS,
    *(f"x-{which}-death-{what}" for which in ("first", "last") for what in ("reason", "queue", "exchange")),
)


class RabbitDeadLetters:
    """The messages of one dead-letter queue.

    Calls that read messages or select some of them have to take messages and release them. They raise
    :class:`~conquiet.rabbit.peek_safety.PeekUnsafeError`, before any is taken, if the queue counts a release toward its
    delivery limit and ``count_a_delivery`` does not allow that, or if a release would delete messages.

    Args:
        url: As for ``RabbitConsumer``.
        queue: The dead-letter queue.
        management_url: ``http://user:password@host:15672``: the management API, which knows the queue's delivery limit.
            None: use AMQP alone, which shows only whether the queue may have one.
        count_a_delivery: Allow releases to a quorum queue that counts them. The call stops at a message that its next
            release might delete.
        timeout_s: Longest wait for each reply of the broker.
        ssl_context: For ``amqps``.
        clock: Replaced in tests.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        queue: str,
        *,
        management_url: str | None = None,
        count_a_delivery: bool = False,
        timeout_s: float = 30.0,
        ssl_context: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._queue = require_name("queue", queue)
        self._management_url = management_url
        self._count_a_delivery = count_a_delivery
        self._clock = clock
        self._address = Address(
            as_urls(url), ssl_context=ssl_context, timeout_s=timeout_s, name="conquiet.dead-letters"
        )

    async def list(self, *, limit: int | None = None, where: DeliveryFilter = EVERYTHING) -> Sequence[DeadDelivery]:
        """Return the first ``limit`` selected messages, or all if it is None. They stay in the queue."""
        require_selection(where, DeliveryFilter, limit=limit)
        found: list[DeadDelivery] = []

        def visit(one: DeadDelivery) -> bool:
            if where.accepts(one):
                found.append(one)
            return False

        await self._walk(visit, enough=lambda: len(found) == limit)
        return found

    async def show(self, dead_id: str) -> DeadDelivery | None:
        """Return the first message with this message id, or else the message at this position; None without either."""
        require_text("dead_id", dead_id)
        by_id: list[DeadDelivery] = []
        by_position: list[DeadDelivery] = []

        def visit(one: DeadDelivery) -> bool:
            if one.message_id == dead_id:
                by_id.append(one)
            elif str(one.position) == dead_id:
                by_position.append(one)
            return False

        await self._walk(visit, enough=lambda: bool(by_id))  # one walk for both: each walk may count a delivery
        return next(iter(by_id + by_position), None)

    async def causes(self) -> Sequence[DeliveryCause]:
        """Return the causes, most frequent first. Takes all messages and releases them."""
        counts = Counter((one.source, one.reason) for one in await self.list())
        return [DeliveryCause(source, reason, count) for (source, reason), count in counts.most_common()]

    async def discard(self, where: DeliveryFilter, *, dry_run: bool = False, limit: int | None = None) -> int:
        """Delete the first ``limit`` selected messages, only among the messages at the start. Return their number.

        A dry run only reads, and returns the number that would be deleted.
        """
        require_selection(where, DeliveryFilter, limit=limit)
        if dry_run:
            return len(await self.list(limit=limit, where=where))
        deleted = 0

        def visit(one: DeadDelivery) -> bool:
            nonlocal deleted
            accepted = where.accepts(one)
            deleted += accepted
            return accepted

        await self._walk(visit, enough=lambda: deleted == limit, releases=where != EVERYTHING)
        return deleted

    async def replay(
        self,
        where: DeliveryFilter,
        *,
        dry_run: bool = False,
        rate_per_s: float | None = None,
        limit: int | None = None,
        to: str | None = None,
        on_progress: Callable[[ReplayReport], None] | None = None,
    ) -> ReplayReport:
        """Put messages back into the queues they died in.

        Each message gets the routing key it was published with, and goes only to its source queue: copies for other
        queues (``CC``) are not sent again. If the key differs from the queue's name, this needs an exchange
        (``conquiet.replay.*``), which exists during the replay. If the user may not create it, the queue's name is
        the key, and a warning is logged; see :attr:`ReplayReport.rekeyed`. With ``to``, the name of that queue is the
        key.

        The replay takes at most the number of messages that the queue holds at the start. So a message that fails again
        and returns is left for another replay.

        Messages that are not put back (not selected, or without a source) are taken and released. So a selection among
        the messages of a quorum queue is refused, as in :meth:`list`. A replay of all messages stops at a message
        without a source that may not be released again.

        Args:
            where: The messages to replay; ``DeliveryFilter()`` selects all.
            dry_run: Only count. Messages are taken and released, as in :meth:`list`.
            rate_per_s: Maximum number of messages put back per second.
            limit: Maximum number of messages put back, or left because they have no source.
            to: The target queue. None reads it from each message: from the broker's ``x-death``, or from the
                ``x-conquiet-queue`` of a consumer that moved it to ``<queue>.dead``.
            on_progress: Called after every message with the report so far.

        Raises:
            PeekUnsafeError: Messages would be released to a queue that may delete them.
            QueueMissingError: The dead-letter queue does not exist.
            PublishError: A message could not be put back. It is still in the dead-letter queue. From RabbitMQ 4.3 on it
                may be a copy behind the others, because a release might exceed the delivery limit of a quorum queue.
        """
        require_selection(where, DeliveryFilter, limit=limit, on_progress=on_progress)
        if to is not None:
            require_name("to", to)
        throttle = Throttle(rate_per_s, self._clock)
        if dry_run:
            found = await self.list(limit=limit, where=where)
            replayable = sum(bool(to or one.source) for one in found)
            return ReplayReport(len(found), replayable, unreplayable=len(found) - replayable, dry_run=True)
        address = self._address
        publisher = Publisher(address.urls, timeout_s=address.timeout_s, ssl_context=address.ssl_context)
        async with AsyncExitStack() as cleanup:  # runs every step, last first, even if one of them is cancelled
            exchanges = TemporaryExchanges(self._address)
            cleanup.push_async_callback(exchanges.close)
            replayer = _Replayer(self._queue, publisher, exchanges)
            taken = await cleanup.enter_async_context(self._open())
            cleanup.push_async_callback(publisher.close)
            cost = await self._require_free(taken) if where != EVERYTHING else None
            expected = taken.depth if limit is None else min(taken.depth, limit)
            report = ReplayReport()
            while report.matched < expected and (message := await taken.next()) is not None:
                if not where.accepts(describe(taken.position, message, self._queue)):
                    await self._check_release(taken, cost, message)
                    continue
                target = to or source_queue(message.headers, self._queue)
                if target is None:
                    await self._check_release(taken, cost, message)
                else:
                    await asyncio.sleep(throttle.reserve())
                    await self._move(replayer, taken, message, target)
                replayed = report.replayed + (target is not None)
                matched = report.matched + 1
                report = ReplayReport(matched, replayed, unreplayable=matched - replayed, rekeyed=replayer.rekeyed)
                if on_progress is not None:
                    on_progress(report)
        return report

    async def _move(self, replayer: "_Replayer", taken: TakenMessages, message: Fetched, target: str) -> None:
        try:
            await replayer.send(message, target)
        except PublishError:
            if await taken.may_delete(message) and await replayer.copy(message):
                taken.acknowledge(message)
            raise
        if not taken.acknowledge(message):
            raise RabbitError(
                "the connection was lost during a replay; the last message may be in both queues", queue=self._queue
            )

    async def _walk(
        self, visit: Callable[[DeadDelivery], bool], *, enough: Callable[[], bool], releases: bool = True
    ) -> None:
        """Call ``visit`` with each message of the queue, from the front. It returns True for a message to delete."""
        async with self._open() as taken:
            cost = await self._require_free(taken) if releases else FREE
            while not enough() and (message := await taken.next()) is not None:
                if not visit(describe(taken.position, message, self._queue)):
                    await self._check_release(taken, cost, message)
                elif not taken.acknowledge(message):
                    raise RabbitError(
                        f"the connection was lost after {taken.acknowledged} were discarded; the others remain",
                        queue=self._queue,
                    )

    @asynccontextmanager
    async def _open(self) -> "AsyncIterator[TakenMessages]":
        link = await open_on_any_node(self._address)
        async with AsyncExitStack() as cleanup:
            cleanup.push_async_callback(link.close)
            taken = TakenMessages(link, self._queue, await link.depth(self._queue))
            cleanup.push_async_callback(taken.release)
            yield taken

    async def _require_free(self, taken: TakenMessages) -> PeekCost:
        cost = await self._find_cost(taken)
        cost.require_free(self._queue, count_a_delivery=self._count_a_delivery)
        return cost

    async def _find_cost(self, taken: TakenMessages) -> PeekCost:
        if not taken.depth:
            return FREE
        return await find_peek_cost(taken.link, self._management_url, self._address.vhost, self._queue)

    async def _check_release(self, taken: TakenMessages, cost: PeekCost | None, message: Fetched) -> None:
        """Raise if the message may not be released again. If the cost is not known yet, determine it."""
        deliveries = delivery_count(message.headers)
        if deliveries:
            cost = await self._find_cost(taken) if cost is None else cost
            cost.check_deliveries(self._queue, deliveries, count_a_delivery=self._count_a_delivery)


class _Replayer:
    """Publishes messages to the queues they died in, if possible under the routing keys they were published with."""

    def __init__(self, dead_letter_queue: str, publisher: Publisher, exchanges: TemporaryExchanges) -> None:
        self._from = dead_letter_queue
        self._publisher = publisher
        self._exchanges = exchanges
        self.rekeyed = 0

    async def send(self, message: Fetched, target: str) -> None:
        exchange, key = await self._route(message.headers, target)
        properties = renewed_properties(message.properties, _HISTORY)
        await self._publisher.send_encoded(Encoded(exchange or "", key, message.body, properties))
        if exchange is None:
            self._count_rekeyed(target)

    async def copy(self, message: Fetched) -> bool:
        """Append a copy without counts to the dead-letter queue. Return False if that failed."""
        properties = renewed_properties(message.properties, NOT_SENT_AGAIN)
        try:
            await self._publisher.send_encoded(Encoded("", self._from, message.body, properties))
        except RabbitError:
            return False
        return True

    async def _route(self, headers: object, target: str) -> tuple[str | None, str]:
        """Return exchange and key. The exchange is None if the original key cannot be used."""
        if read_move_record(headers, self._from) is not None:
            return "", target
        key = original_key(headers)
        if key is None or key == target or source_queue(headers, self._from) != target:
            return "", target
        exchange = await self._exchanges.to(target)
        return (None, target) if exchange is None else (exchange, key)

    def _count_rekeyed(self, target: str) -> None:
        self.rekeyed += 1
        if self.rekeyed == 1:
            logger.warning(
                "messages are replayed under another routing key than their own, as this user may not make and bind an "
                "exchange: if their queue dead-letters by that key, they are discarded when they fail again",
                queue=target,
                exchange=PREFIX + "*",
            )
