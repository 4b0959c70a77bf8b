"""A quorum queue over three RabbitMQ nodes: killed, drained, cut off, connections closed; nothing is lost.

Refused are the numbers divisible by ten, always; everything else succeeds. At the end each good number was handled at
least once and none of them is a dead letter, each refused one is a dead letter, a replay brings the dead letters back,
and the queue is empty. A publish without an answer is repeated as another message: ``number.attempt``.

Three nodes take a minute to start on a busy machine, so this runs with ``make torture`` only (see ``conftest``): 100
faults over 20,000 messages, or as many as ``CONQUIET_CLUSTER_FAULTS`` says, with 200 messages for each.
"""

import asyncio
import contextlib
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from tests.invariants.histories import History, Row, rabbit_facts, seed_or

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


KINDS = ("kill_leader", "close_connections", "drain_leader", "kill_any", "cut_off", "close_connections")


class Faults:
    """What happens to the cluster, one fault after the other, in a thread."""

    def __init__(self, cluster: RabbitMQClusterServer, vhost: str, history: History) -> None:
        self._cluster, self._vhost, self._history = cluster, vhost, history
        self._dice = random.Random(history.seed)

    def run(self) -> None:
        for number in range(FAULTS):
            kind = KINDS[number % len(KINDS)]
            with self._history.outage(kind.replace("_", " ")):
                getattr(self, f"_{kind}")()

    def _kill_leader(self) -> None:
        self._cluster.revive(self._cluster.kill_leader("work", self._vhost))

    def _kill_any(self) -> None:
        node = self._dice.choice(self._cluster.nodes)
        node.kill()
        self._cluster.revive(node)

    def _drain_leader(self) -> None:
        with self._cluster.drain(self._cluster.leader_of("work", self._vhost)):
            pass

    def _cut_off(self) -> None:
        with self._cluster.cut_off(self._dice.choice(self._cluster.nodes)):
            pass

    def _close_connections(self) -> None:
        node = self._cluster.nodes[0]
        for connection in node.api("GET", "/api/connections"):
            with contextlib.suppress(OSError):
                node.api("DELETE", f"/api/connections/{quote(connection['name'], safe='')}", missing_ok=True)


async def publish(urls: list[str], total: int, history: History) -> int:
    """Publish all numbers, each until it is confirmed; return how many publishes had no answer."""
    doubtful = 0
    async with Publisher(urls, timeout_s=10.0) as publisher:
        for number in range(total):
            attempt = 0
            while True:
                name = f"{number}.{attempt}"
                try:
                    await publisher.send(Outgoing("work", {"id": name, "number": number}))
                except RabbitError:
                    history.record("enqueue", id=name, expect="unsure")
                    doubtful += 1
                    attempt += 1
                    await asyncio.sleep(0.05)
                else:
                    history.record("enqueue", id=name, expect="effect" if number % 10 else "dead")
                    break
    return doubtful


@pytest.mark.timeout(7_200)
async def test_a_cluster_whose_nodes_die_loses_nothing_and_settles_by_the_rules(
    cluster: RabbitMQClusterServer, new_history: Callable[..., History]
) -> None:
    vhost = "storm"
    urls = await asyncio.to_thread(cluster.create_vhost, vhost)
    await declare(cluster, vhost)
    history = new_history(
        "a RabbitMQ cluster in motion",
        Row("RabbitConsumer, Publisher", "none", "RabbitMQ: 3 nodes, quorum queues"),
        seed=seed_or(5),
        promise={"effects": "at least once"},
        servers=[rabbit_facts(cluster.nodes[0].api, queue="quorum, 3 members")],
    )
    total = FAULTS * MESSAGES_EACH
    handled: Counter[str] = Counter()
    replaying = False

    async def syncer(message: dict[str, Any]) -> bool:
        name = message["id"]
        if not replaying:
            history.record("deliver", id=name)
        if message["number"] % 10 == 0 and not replaying:
            history.record("release", id=name)
            return False
        handled[name] += 1
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
    storm = asyncio.create_task(asyncio.to_thread(Faults(cluster, vhost, history).run))
    await publish(urls, total, history)
    await storm
    history.recovery()
    good = {number for number in range(total) if number % 10}

    async def depth(queue: str) -> int:
        return int((await asyncio.to_thread(_queue, cluster, vhost, queue)).get("messages", -1))

    async def is_settled() -> bool:
        seen = {int(name.partition(".")[0]) for name in handled}
        return good <= seen and await depth("work") == 0 and await depth("dead") >= total - len(good)

    with contextlib.suppress(TimeoutError):  # the judgement says what is missing
        await wait_until_async(is_settled, timeout_s=120)
        history.record("drained")
    letters = RabbitDeadLetters(urls, "dead", count_a_delivery=True)  # its limit is not known here, and it is read once
    dead = [json.loads(one.body)["id"] for one in await letters.list(limit=None)]
    history.record("state", effects=sorted(handled.elements()), dead=dead, left={"work": await depth("work")})
    replaying = True
    await letters.replay(DeliveryFilter())
    await wait_until_async(lambda: set(dead) <= set(handled), timeout_s=120)
    consumer.stop()
    await running

    assert history.judge()["examples"] == {}


def _queue(cluster: RabbitMQClusterServer, vhost: str, queue: str) -> dict[str, Any]:
    node = next(node for node in cluster.nodes if node.is_running)
    found: dict[str, Any] = node.api("GET", f"/api/queues/{quote(vhost, safe='')}/{queue}") or {}
    return found
