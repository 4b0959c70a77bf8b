"""Move failed messages to ``<queue>.dead``: publish, wait for the confirmation, and only then acknowledge.

A crash between the confirmation and the acknowledgement leaves the message in both queues: a duplicate is preferred to
a loss. Until the broker confirms, the delivery stays unsettled, and the mover retries with backoff. If the queue cannot
be created, the consumer ends and the message stays unsettled, because the alternative is to lose it.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from conquiet.core.backoff import Backoff
from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.errors import (
    ConfigurationError,
    QueueMissingError,
    RabbitConnectionError,
    RabbitError,
    ReturnedMessageError,
)
from conquiet.rabbit.address import Address, require_name
from conquiet.rabbit.confirms import Encoded
from conquiet.rabbit.connection import REFUSED, Link
from conquiet.rabbit.dead_letter_headers import dead_queue, with_move_record
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.publisher import Publisher
from conquiet.rabbit.settle import Verdict

logger = FactLogger(__name__)

_HOW_TO_KEEP: Final = (
    "give the queue a dead-letter exchange (a policy, or the argument x-dead-letter-exchange) and say "
    'dead_letter=True, create the queue {target} yourself, or accept the loss with without_dead_letters="discard"'
)


class DeadLetterMover:
    """Moves deliveries of one queue to its dead-letter queue.

    Args:
        address: The broker.
        queue: The consumed queue.
        fail: Called with the reason if messages cannot be moved.
        backoff: Waiting times before retries of a move.
    """

    def __init__(self, address: Address, queue: str, fail: Callable[[RabbitError], None], backoff: Backoff) -> None:
        self._address = address
        self._queue = queue
        self._publisher = Publisher(address.urls, timeout_s=address.timeout_s, ssl_context=address.ssl_context)
        self._fail = fail
        self._backoff = backoff
        self._target = dead_queue(queue)
        self._exists = False
        self._creating = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def move(self, delivery: Delivery, verdict: Verdict) -> None:
        """Start to move a delivery. It is acknowledged when the broker has confirmed the copy."""
        task = asyncio.get_running_loop().create_task(self._move(delivery, verdict))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drained(self) -> None:
        """Wait until every move has ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def drop_connection(self) -> None:
        """End the connection without waiting for the broker. Unconfirmed messages stay in their queue."""
        self._publisher.drop()

    async def close(self) -> None:
        """Cancel unfinished moves and close the connection. Their messages stay in their queue."""
        for task in self._tasks:
            task.cancel()
        await self.drained()
        await self._publisher.close()

    async def _move(self, delivery: Delivery, verdict: Verdict) -> None:
        properties = with_move_record(delivery.raw_properties, self._queue, verdict, datetime.now(UTC))
        message = Encoded("", self._target, delivery.body, properties)
        failures = 0
        while delivery.session.is_open:
            try:
                await self._ensure_queue()
                await self._publisher.send_encoded(message)
            except ConfigurationError as error:  # a retry would not help
                self._fail(RabbitError(self._impossible(str(error)), queue=self._queue))
                return
            except RabbitError as error:
                self._exists = self._exists and not isinstance(error, ReturnedMessageError)
                failures += 1
                if failures == 1:
                    facts = {"queue": self._queue, "to": self._target, "error": type(error).__name__}
                    logger.warning("a message could not be moved yet; it stays unsettled", **facts)
                await asyncio.sleep(self._backoff.delay_s(failures))
                continue
            self._report(delivery, message, verdict)
            delivery.session.moved(delivery)
            return
        delivery.session.skip(delivery)

    def _report(self, delivery: Delivery, message: Encoded, verdict: Verdict) -> None:
        facts = {
            "queue": self._queue,
            "to": self._target,
            "delivery_tag": delivery.tag,
            "message_id": printable(message.message_id),
            "reason": verdict.reason,
        }
        logger.warning("message moved", **facts)

    async def _ensure_queue(self) -> None:
        """Use an existing queue of any type; else declare a durable one."""
        async with self._creating:
            if not self._exists:
                require_name("its name", self._target)
                await self._find_or_declare()
                self._exists = True

    async def _find_or_declare(self) -> None:
        link = await Link.open(self._address)
        try:
            await link.depth(self._target)
        except QueueMissingError:  # the broker has closed the channel
            await link.close_soon()
            link = await Link.open(self._address)
            await self._declare(link)
            logger.warning("queue declared for failed messages", queue=self._queue, to=self._target)
        finally:
            await link.close_soon()

    async def _declare(self, link: Link) -> None:
        try:
            await link.request(lambda channel, done: channel.queue_declare(self._target, durable=True, callback=done))
        except RabbitConnectionError as error:
            if link.refusal != REFUSED:
                raise
            raise ConfigurationError("this user may not create it") from error

    def _impossible(self, why: str) -> str:
        how = _HOW_TO_KEEP.format(target=self._target)
        return f"queue {self._queue} has no known dead-letter exchange and {self._target} cannot be used: {why}; {how}"
