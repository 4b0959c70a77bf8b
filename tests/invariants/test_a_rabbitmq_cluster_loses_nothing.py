"""A quorum queue over three RabbitMQ nodes: nodes killed, leaders moved, connections closed; nothing is lost.

Refused are the numbers divisible by ten, always; everything else succeeds. At the end each good number was handled at
least once, each refused one is a dead letter, a replay brings the dead letters back, and the queue is empty.

Three nodes take a minute to start on a busy machine, so this runs with ``make torture`` only (see ``conftest``): 100
faults over 20,000 messages, or as many as ``CONQUIET_CLUSTER_FAULTS`` says, with 200 messages for each.
"""

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from conquiet.core.backoff import Backoff
from conquiet.errors import RabbitError
from conquiet.rabbit import DeliveryFilter, Outgoing, Publisher, RabbitConsumer, RabbitDeadLetters, SchemaRegistry
from conquiet.testing import RabbitMQClusterServer, wait_until_async

FAULTS = int(os.environ.get("CONQUIET_CLUSTER_FAULTS", "100"))
MESSAGES_EACH = 200


@pytest.fixture(scope="module")
def cluster() -> Iterator[RabbitMQClusterServer]:
    with RabbitMQClusterServer() as started:
        yield started


async def declare(cluster: RabbitMQClusterServer, vhost: str) -> None:
    arguments: dict[str, dict[str, Any]] = {
        "dead": {"x-queue-type": "quorum"},
        "work": {
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
            # Without it a node that dies may take a dead letter along that is on its way.
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
    }
    for queue, given in arguments.items():
        path = f"/api/queues/{quote(vhost, safe='')}/{queue}"
        await asyncio.to_thread(cluster.nodes[0].api, "PUT", path, {"durable": True, "arguments": given})


class Faults:
    """What happens to the cluster."""

    def __init__(self, cluster: RabbitMQClusterServer, vhost: str) -> None:
        self._cluster, self._vhost = cluster, vhost
        self._dice = random.Random(5)
        self.kinds: Counter[str] = Counter()

    def run(self) -> None:
        for number in range(FAULTS):
            kind = ("kill_leader", "close_connections", "kill_any", "close_connections")[number % 4]
            getattr(self, f"_{kind}")()
            self.kinds[kind] += 1

    def _kill_leader(self) -> None:
        self._cluster.revive(self._cluster.kill_leader("work", self._vhost))

    def _kill_any(self) -> None:
        node = self._dice.choice(self._cluster.nodes)
        node.kill()
        self._cluster.revive(node)

    def _close_connections(self) -> None:
        node = self._cluster.nodes[0]
        for connection in node.api("GET", "/api/connections"):
            with contextlib.suppress(OSError):
                node.api("DELETE", f"/api/connections/{quote(connection['name'], safe='')}", missing_ok=True)


@pytest.mark.timeout(7_200)
async def test_a_cluster_whose_nodes_die_loses_nothing_and_settles_by_the_rules(
    cluster: RabbitMQClusterServer, capsys: pytest.CaptureFixture[str]
) -> None:
    vhost = "storm"
    urls = await asyncio.to_thread(cluster.create_vhost, vhost)
    await declare(cluster, vhost)
    total = FAULTS * MESSAGES_EACH
    handled: Counter[int] = Counter()
    replaying = False

    async def syncer(message: dict[str, Any]) -> bool:
        if message["number"] % 10 == 0 and not replaying:
            return False
        handled[message["number"]] += 1
        return True

    options: dict[str, Any] = {
        "reconnect": Backoff(base_s=0.05, cap_s=1.0),
        "max_reconnects": 10_000,
        "connect_timeout_s": 5.0,
        "heartbeat_s": 5,
        "schemas": SchemaRegistry(built_in=False).register_default(),
        "concurrency": 8,
    }
    consumer = RabbitConsumer(urls, "work", syncer, **options)
    running = asyncio.create_task(consumer.run())
    faults = Faults(cluster, vhost)
    storm = asyncio.create_task(asyncio.to_thread(faults.run))
    doubtful = 0
    async with Publisher(urls, timeout_s=10.0) as publisher:
        for number in range(total):
            while True:
                try:
                    await publisher.send(Outgoing("work", {"number": number}))
                    break
                except RabbitError:
                    doubtful += 1  # it may be there: sent again, it may be there twice
                    await asyncio.sleep(0.05)
    await storm
    good = {number for number in range(total) if number % 10}
    await wait_until_async(lambda: good <= set(handled), timeout_s=120)
    letters = RabbitDeadLetters(urls, "dead")

    async def depth(queue: str) -> int:
        return int((await asyncio.to_thread(_queue, cluster, vhost, queue)).get("messages", -1))

    async def is_settled() -> bool:
        return await depth("work") == 0 and await depth("dead") >= total - len(good)

    await wait_until_async(is_settled, timeout_s=120)
    dead = await depth("dead")
    replaying = True
    await letters.replay(DeliveryFilter())
    await wait_until_async(lambda: len(handled) == total, timeout_s=120)
    consumer.stop()
    await running
    with capsys.disabled():
        print(  # noqa: T201 - the ledger of the storm
            f"\nfaults={dict(faults.kinds)} messages={total} lost=0 handled_again={handled.total() - len(handled)} "
            f"publishes_in_doubt={doubtful} dead={dead}"
        )

    assert set(handled) == set(range(total))
    assert dead <= total - len(good) + doubtful


def _queue(cluster: RabbitMQClusterServer, vhost: str, queue: str) -> dict[str, Any]:
    node = next(node for node in cluster.nodes if node.is_running)
    found: dict[str, Any] = node.api("GET", f"/api/queues/{quote(vhost, safe='')}/{queue}") or {}
    return found
