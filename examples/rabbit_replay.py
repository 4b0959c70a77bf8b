"""Publish orders, let them fail, and replay them from the dead letters.

    python examples/rabbit_replay.py amqp://guest:guest@localhost/%2F orders orders-dead

Both queues must exist, and ``orders`` must dead-letter to ``orders-dead``.
"""

import asyncio
import sys

import msgspec

from conquiet.rabbit import DeliveryFilter, Outgoing, Publisher, RabbitConsumer, RabbitDeadLetters, SchemaRegistry


class Order(msgspec.Struct):
    """The validated object that the syncer gets."""

    number: int


async def main(url: str, queue: str, dead: str) -> None:
    schemas = SchemaRegistry(built_in=False).register("shop:order:1", Order)
    shop_is_open = False
    stocked = asyncio.Event()

    async def syncer(order: Order) -> bool:
        print("order", order.number, "shipped" if shop_is_open else "refused")
        if shop_is_open and order.number == 3:
            stocked.set()
        return shop_is_open

    async with Publisher(url) as publisher:
        await publisher.publish_many(
            Outgoing(queue, {"schema": "shop:order:1", "number": number}) for number in (1, 2, 3)
        )
    async with RabbitConsumer(url, queue, syncer, schemas=schemas) as consumer:
        while consumer.count.dead_lettered < 3:  # noqa: ASYNC110 - an example may poll
            await asyncio.sleep(0.05)
        shop_is_open = True
        replayed = 0
        while replayed < 3:  # the broker moves what was refused in its own time; a replay takes what is there
            replayed += (await RabbitDeadLetters(url, dead).replay(DeliveryFilter(), rate_per_s=100)).replayed
        print("replayed", replayed)
        await asyncio.wait_for(stocked.wait(), 10)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
