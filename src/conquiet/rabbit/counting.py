"""Whether a queue counts how often its messages are handed back, learned by AMQP alone and without taking any.

A quorum queue counts, and drops a message that was handed back more often than its delivery limit. Measured on RabbitMQ
3.10: nack, reject, recover and the end of a channel all count. AMQP does not tell the type of a queue, but a quorum
queue is the one that refuses a consumer whose prefetch is meant for the whole channel.
"""

from uuid import uuid4

from conquiet.errors import RabbitConnectionError
from conquiet.rabbit.address import Address
from conquiet.rabbit.connection import Link


async def may_count_deliveries(address: Address, queue: str) -> bool:
    """Ask over a connection of its own, which does not survive the question. True also where the answer is unclear."""
    link = await _Question.open(address)
    assert isinstance(link, _Question)  # noqa: S101 - made by its own class
    try:
        return not await link.takes_any_consumer(queue)
    finally:
        await link.close()


class _Question(Link):
    async def takes_any_consumer(self, queue: str) -> bool:
        """Say whether the queue takes a consumer of the kind that quorum queues refuse."""
        tag = f"conquiet.question.{uuid4().hex}"
        try:
            await self._ask(lambda done: self._channel.basic_qos(prefetch_count=1, global_qos=True, callback=done))
            await self._ask(lambda done: self._channel.basic_consume(queue, _ignore, consumer_tag=tag, callback=done))
        except RabbitConnectionError:
            if self.lost.done():
                return False  # 540 from a quorum queue; anything else (no such right, an exclusive consumer) is unclear
            raise
        return True


def _ignore(*_: object) -> None:
    """Leave what is delivered meanwhile unsettled: it goes back with the channel, to where it was."""
