"""Consumers that break off park one poisoned message at most. Only running messages count as abandoned."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from conquiet.errors import FatalSyncerError
from conquiet.rabbit.address import Address
from conquiet.rabbit.counters import DeliveryStats
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.dispatcher import Dispatcher
from conquiet.rabbit.message_schemas import SchemaRegistry
from conquiet.rabbit.pipeline import Pipeline
from conquiet.rabbit.settings import RabbitSettings
from conquiet.rabbit.settle import Exhausted, SettlePolicy


def test_after_one_break_the_poison_guard_parks_no_other_message() -> None:
    """If two messages break the contract, an outage is likelier than two poison messages."""
    failures: list[Any] = []
    dispatcher: Any = SimpleNamespace(policy=SettlePolicy(poison_guard=True), _queue="work", _fail=failures.append)

    Dispatcher._end_consumer(dispatcher, Exhausted(), "was dead-lettered")

    assert dispatcher.policy == SettlePolicy(poison_guard=False)
    assert [type(failure) for failure in failures] == [FatalSyncerError]


async def test_only_messages_that_run_are_counted_as_abandoned() -> None:
    """The others go back to their queue as if they had never been delivered."""
    loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def blocks(_: Any) -> bool:
        loop.call_soon_threadsafe(begun.set)
        return go_on.wait(60)

    stats = DeliveryStats("work")
    pipeline = Pipeline(SchemaRegistry(built_in=False).register_default())
    failures: list[Any] = []
    address = Address(("amqp://127.0.0.1:1",))
    settings = RabbitSettings(concurrency=1, grace_s=0)
    dispatcher = Dispatcher(blocks, pipeline, settings, address, stats, failures.append)
    dispatcher.start()
    session: Any = SimpleNamespace(is_open=True)
    dispatcher.submit([Delivery(session, tag, False, b"", b"{}") for tag in (1, 2, 3)])  # noqa: FBT003
    async with asyncio.timeout(60):
        await begun.wait()

    dispatcher.collect_unstarted()
    await dispatcher.drain()
    go_on.set()

    assert (stats.count.abandoned, failures) == (1, [])
