"""Several URLs: every part that uses RabbitMQ continues with another node if its own is unavailable.

The nodes are two ways to one broker, so that either can be closed at will. A real cluster with nodes that die is in
tests/invariants/test_a_rabbitmq_cluster_loses_nothing.py.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from tests.integration.rabbit.conftest import Rabbit, Recorder

from conquiet.db.session import DbSession
from conquiet.errors import RabbitError
from conquiet.rabbit import (
    DeliveryFilter,
    Outgoing,
    Publisher,
    RabbitConsumer,
    RabbitDeadLetters,
    SchemaRegistry,
)
from conquiet.testing import FaultProxy, wait_until, wait_until_async
from conquiet.transactional import Outbox, OutboxRelay, ToRabbit, create_tables


class Nodes:
    """Two nodes, of which one can be unavailable."""

    def __init__(self, proxies: list[FaultProxy], url: str) -> None:
        self._proxies = proxies
        self.urls = [proxy.url_for(url) for proxy in proxies]

    def only(self, number: int) -> None:
        """Make one node available and the other unavailable."""
        for at, proxy in enumerate(self._proxies):
            if at == number:
                proxy.accept()
            else:
                proxy.refuse()
                proxy.disconnect()


@pytest.fixture
def nodes(rabbit: Rabbit, fault_proxy: Callable[[str], FaultProxy]) -> Nodes:
    return Nodes([fault_proxy(rabbit.url) for _ in range(2)], rabbit.url)


async def test_a_consumer_moves_to_the_node_that_is_there(
    rabbit: Rabbit, nodes: Nodes, recorder: type[Recorder], fast: dict[str, Any]
) -> None:
    queue, syncer = rabbit.queue(), recorder()
    schemas = SchemaRegistry(built_in=False).register_default()

    nodes.only(1)  # the first is unavailable at the start
    async with RabbitConsumer(nodes.urls, queue, syncer, schemas=schemas, **fast):
        for number in range(3):
            rabbit.put(queue, {"n": number})
            await wait_until_async(lambda: {"n": number} in syncer.seen)  # noqa: B023 - awaited here
            nodes.only(number % 2)


async def test_a_publisher_sends_through_the_node_that_is_there(rabbit: Rabbit, nodes: Nodes) -> None:
    queue = rabbit.queue()
    async with Publisher(nodes.urls, timeout_s=10.0) as publisher:
        for number in range(4):
            nodes.only(number % 2)
            await wait_until_async(lambda: _sent(publisher, queue))
    assert rabbit.depth(queue) >= 4


async def _sent(publisher: Publisher, queue: str) -> bool:
    try:
        await publisher.send(Outgoing(queue, {}))
    except RabbitError:  # its connection was cut: the caller decides whether to send it again
        return False
    return True


async def test_a_relay_publishes_through_the_node_that_is_there(rabbit: Rabbit, nodes: Nodes, tmp_path: Path) -> None:
    queue = rabbit.queue()
    engine = create_engine(f"sqlite:///{tmp_path / 'outbox.db'}")
    create_tables(engine)

    def relayed(number: int) -> None:
        nodes.only(number % 2)
        with DbSession(engine) as session:
            Outbox().add(session, queue, {"n": number})
        wait_until(lambda: relay.relay_once().published == 1)

    with ToRabbit(nodes.urls, queue, timeout_s=10.0) as target, OutboxRelay(engine, {queue: target}) as relay:
        for number in range(4):
            await asyncio.to_thread(relayed, number)
    engine.dispose()
    assert rabbit.depth(queue) >= 4


async def test_dead_letters_are_replayed_through_the_node_that_is_there(rabbit: Rabbit, nodes: Nodes) -> None:
    queue = rabbit.queue(x_message_ttl=1)  # so they are dead-lettered
    for number in range(2):
        nodes.only(number)
        rabbit.put(queue, {"n": number})
        rabbit.wait_for_depth("dead", 1)
        dead_letters = RabbitDeadLetters(nodes.urls, "dead")

        assert len(await dead_letters.list()) == 1
        assert (await dead_letters.replay(DeliveryFilter(), to=rabbit.queue("again", dead=None))).replayed == 1
    assert rabbit.depth("again") == 2
