"""Quorum queues over three RabbitMQ nodes: killed, paused, drained, cut off, connections closed; nothing is lost.

    Publisher ────────▶ work      settled by the flag "redelivered"    ┐
    outbox and relay ─▶ counted   settled by "x-delivery-count"        ┴─▶ dead, then replayed while its leader dies

The consumers refuse numbers divisible by ten; all others succeed. At the end each good number was handled at least once
and none of them is a dead letter; each refused number is a dead letter, after the last delivery that its rule allows
and not before; a replay returns the dead letters; and the queues are empty. A publish without a reply is repeated as
another message: ``number.attempt``.

Three nodes take a minute to start on a busy machine, so this runs with ``make torture`` only (see ``conftest``): 100
faults over 20,000 messages, or ``CONQUIET_CLUSTER_FAULTS`` of them that fit into ``CONQUIET_CLUSTER_MINUTES``, with 200
messages for each.
"""

import asyncio
import contextlib
import json
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Engine, create_engine
from tests.invariants import wire
from tests.invariants.histories import History, Row, rabbit_facts, seed_or
from tests.invariants.rabbit_cluster_faults import Faults, Pace

from conquiet.core.backoff import Backoff
from conquiet.db.session import DbSession
from conquiet.errors import RabbitError
from conquiet.rabbit import (
    DeliveryFilter,
    Outgoing,
    Publisher,
    RabbitConsumer,
    RabbitDeadLetters,
    SchemaRegistry,
    current_delivery,
)
from conquiet.rabbit.connection import Link
from conquiet.rabbit.settle import DeliveryFacts
from conquiet.testing import RabbitMQClusterServer, wait_until_async
from conquiet.transactional import Outbox, OutboxRelay, ToRabbit, create_tables
from conquiet.transactional.relay_decisions import OutboxMessage, PublishOutcome

FAULTS = int(os.environ.get("CONQUIET_CLUSTER_FAULTS", "100"))
WITHIN_S = 60 * float(os.environ.get("CONQUIET_CLUSTER_MINUTES", "60"))
MESSAGES_EACH = 200
MAX_REQUEUES = 3
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
# Without it a node that dies may take a dead letter along that is on its way.
KEPT = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}
OPTIONS: dict[str, Any] = {
    "reconnect": Backoff(base_s=0.05, cap_s=1.0),
    "max_reconnects": 10_000,
    "connect_timeout_s": 5.0,
    "heartbeat_s": 5,
    "schemas": SchemaRegistry(built_in=False).register_default(),
    "concurrency": 8,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RabbitMQClusterServer]:
    with RabbitMQClusterServer() as started:
        yield started


def declare(cluster: RabbitMQClusterServer, vhost: str, **queues: dict[str, Any]) -> None:
    for queue, arguments in queues.items():
        path = f"/api/queues/{quote(vhost, safe='')}/{queue}"
        cluster.nodes[0].api("PUT", path, {"durable": True, "arguments": QUORUM | arguments})


def depth(cluster: RabbitMQClusterServer, vhost: str, queue: str) -> int:
    """Return how many messages a queue has, ready or delivered; -1 if no node knows."""
    with contextlib.suppress(OSError):
        node = next(node for node in cluster.nodes if node.is_running)
        found: dict[str, Any] = node.api("GET", f"/api/queues/{quote(vhost, safe='')}/{queue}")
        return int(found.get("messages", -1))
    return -1


class NamedCopies(ToRabbit):
    """Gives each copy that the relay publishes a separate name, ``number.attempt``, and records its outcome."""

    def __init__(self, urls: Sequence[str], history: History) -> None:
        super().__init__(urls, "counted", timeout_s=10.0)
        self._history = history
        self._attempts: Counter[int] = Counter()

    def publish(self, messages: Sequence[OutboxMessage]) -> Any:
        named, names = [], []
        for message in messages:
            data = json.loads(message.payload)
            names.append(f"{data['number']}.{self._attempts[data['number']]}")
            self._attempts[data["number"]] += 1
            named.append(replace(message, payload=json.dumps(data | {"id": names[-1]}).encode()))
        results: Any = [(PublishOutcome.DEFERRED, "")] * len(names)
        try:
            results = super().publish(named)
        finally:
            for name, (outcome, _) in zip(names, results, strict=True):
                note_sent(self._history, name, confirmed=outcome is PublishOutcome.PUBLISHED)
        return results


def note_sent(history: History, name: str, *, confirmed: bool) -> None:
    refused = int(name.partition(".")[0]) % 10 == 0
    history.record("enqueue", id=name, expect="unsure" if not confirmed else "dead" if refused else "effect")


async def publish(urls: list[str], engine: Engine, pace: Pace, history: History) -> int:
    """Send numbers: the first half of each batch by a publisher, until confirmed, the other by the outbox.

    Returns how many.
    """
    batch = 0
    async with Publisher(urls, timeout_s=10.0) as publisher:
        while batch < pace.wanted and not pace.ended:
            pace.batch_begins()
            numbers = range(batch * MESSAGES_EACH, (batch + 1) * MESSAGES_EACH)
            rows = [{"number": number} for number in numbers[MESSAGES_EACH // 2 :]]
            await asyncio.to_thread(write_rows, engine, rows)
            for number in numbers[: MESSAGES_EACH // 2]:
                await send(publisher, number, history)
            batch += 1
            await wait_until_async(lambda: pace.begun >= batch or pace.ended, timeout_s=600)  # noqa: B023 - awaited here
    return batch * MESSAGES_EACH


def write_rows(engine: Engine, rows: list[dict[str, Any]]) -> None:
    with DbSession(engine) as session:
        Outbox().add_many(session, "counted", rows)


async def send(publisher: Publisher, number: int, history: History) -> None:
    for attempt in range(10_000):
        name = f"{number}.{attempt}"
        try:
            await publisher.send(Outgoing("work", {"id": name, "number": number}))
        except RabbitError:
            note_sent(history, name, confirmed=False)
            await asyncio.sleep(0.05)
        else:
            note_sent(history, name, confirmed=True)
            return


class Handlers:
    """The work of the consumers: how often each message was handled, and the broker's flags at each refusal."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.handled: Counter[str] = Counter()
        self.refused: dict[str, list[DeliveryFacts]] = defaultdict(list)
        self.replaying = False

    async def by_flag(self, message: dict[str, Any]) -> bool:
        return self._handle(message, is_last=lambda facts: facts.redelivered)

    async def by_count(self, message: dict[str, Any]) -> bool:
        return self._handle(message, is_last=lambda facts: (facts.delivery_count or 0) >= MAX_REQUEUES)

    def _handle(self, message: dict[str, Any], *, is_last: Callable[[DeliveryFacts], bool]) -> bool:
        name, delivery = message["id"], current_delivery()
        if self.replaying:
            self.handled[name] += 1
            return True
        link: Any = delivery.session.link
        self._history.record("deliver", id=name, link=link.opened)
        wire.delivered(name)
        if message["number"] % 10:
            self.handled[name] += 1
            self._history.record("commit", id=name)
            return True
        self.refused[name].append(delivery.facts)
        if not is_last(delivery.facts):
            self._history.record("release", id=name)  # the last one is not returned: another delivery needs a fault
        return False


@pytest.fixture
def noted_links(monkeypatch: pytest.MonkeyPatch) -> Callable[[History], None]:
    """Note when connections are opened and lost, and what is acknowledged, in a history."""

    def note(history: History) -> None:
        open_link = Link.open

        async def open_and_note(*arguments: Any, **options: Any) -> Any:
            opened = round(time.monotonic(), 6)
            link: Any = await open_link(*arguments, **options)
            link.opened = opened
            link.lost.add_done_callback(lambda _: history.record("lost", link=opened))
            return link

        monkeypatch.setattr(Link, "open", open_and_note)
        wire.note_queue_acks(history.record, monkeypatch.setattr)

    return note


@pytest.mark.timeout(7_200)
async def test_a_cluster_whose_nodes_die_loses_nothing_and_settles_by_the_rules(  # noqa: PLR0915 - one storm, in order
    cluster: RabbitMQClusterServer,
    tmp_path: Path,
    new_history: Callable[..., History],
    noted_links: Callable[[History], None],
) -> None:
    vhost, pace = "storm", Pace(FAULTS, WITHIN_S)
    urls = await asyncio.to_thread(cluster.create_vhost, vhost)
    await asyncio.to_thread(declare, cluster, vhost, dead={}, work=DEAD | KEPT, counted=DEAD | KEPT)
    history = new_history(
        "a RabbitMQ cluster in motion",
        Row("RabbitConsumer, Publisher, OutboxRelay", "SQLite", "RabbitMQ: 3 nodes, quorum queues"),
        seed=seed_or(5),
        promise={"effects": "at least once", "commits": True},
        servers=[rabbit_facts(cluster.nodes[0].api, queue="quorum, 3 members")],
    )
    noted_links(history)
    engine = create_engine(
        f"sqlite:///{tmp_path / 'outbox.db'}", connect_args={"timeout": 300.0}
    )  # the relay writes, too
    create_tables(engine)
    handlers = Handlers(history)
    consumers = [
        RabbitConsumer(urls, "work", handlers.by_flag, **OPTIONS),
        RabbitConsumer(
            urls, "counted", handlers.by_count, settle="delivery_count", max_requeues=MAX_REQUEUES, **OPTIONS
        ),
    ]
    running = [asyncio.create_task(consumer.run()) for consumer in consumers]
    target = NamedCopies(urls, history)
    relay = OutboxRelay(engine, {"counted": target})
    relaying = threading.Thread(target=relay.run)
    relaying.start()

    async def is_settled() -> bool:
        seen = {int(name.partition(".")[0]) for name in handlers.handled}
        depths = await asyncio.to_thread(
            lambda: [depth(cluster, vhost, queue) for queue in ("work", "counted", "dead")]
        )
        return good <= seen and depths[:2] == [0, 0] and depths[2] >= total - len(good)

    try:
        async with asyncio.TaskGroup() as group:  # a failing task ends the other
            group.create_task(asyncio.to_thread(Faults(cluster, vhost, history, pace).run))
            publishing = group.create_task(publish(urls, engine, pace, history))
        total = publishing.result()
        good = {number for number in range(total) if number % 10}
        history.recovery()
        with contextlib.suppress(TimeoutError):  # the judgement names the missing messages
            await wait_until_async(is_settled, timeout_s=120, interval_s=0.5)
            history.record("drained")
        waiting = Outbox().backlog(engine)
        dead_letters = RabbitDeadLetters(
            urls, "dead", count_a_delivery=True
        )  # its limit is not known here, and it is read once
        dead = Counter(json.loads(one.body)["id"] for one in await dead_letters.list(limit=None))
        left = {queue: depth(cluster, vhost, queue) for queue in ("work", "counted")}
        left["outbox"] = sum(one.waiting for one in waiting.values())
        effects = sorted(handlers.handled.elements())
        handlers.replaying = True
        await replay_while_the_leader_dies(cluster, vhost, dead_letters)
        with contextlib.suppress(TimeoutError):  # see not_replayed
            await wait_until_async(lambda: set(dead) <= set(handlers.handled), timeout_s=120)
    finally:
        relay.stop()
        await asyncio.to_thread(relaying.join)
        relay.close()
        target.close()
        for consumer in consumers:
            consumer.stop()
        await asyncio.gather(*running, return_exceptions=True)
        engine.dispose()

    # The broker passes a dead letter on at least once: a second copy is its own, and counted here.
    print(f"dead letters {len(dead)}, copies made by the broker {dead.total() - len(dead)}")  # noqa: T201
    history.record("state", effects=effects, dead=sorted(dead), left=left)
    judgement = history.judge()
    not_replayed = set(dead) - set(handlers.handled)
    assert wrongly_settled(dead, handlers.refused) == {}
    assert judgement["examples"] == {}
    assert not_replayed == set()


def wrongly_settled(dead: Counter[str], refused: dict[str, list[DeliveryFacts]]) -> dict[str, list[DeliveryFacts]]:
    """Return dead letters that no delivery allowed: each must have been refused when its rule was at the end."""

    def is_last(name: str, facts: DeliveryFacts) -> bool:
        by_flag = int(name.partition(".")[0]) % MESSAGES_EACH < MESSAGES_EACH // 2
        return facts.redelivered if by_flag else (facts.delivery_count or 0) >= MAX_REQUEUES

    return {name: refused[name] for name in dead if not any(is_last(name, facts) for facts in refused[name])}


async def replay_while_the_leader_dies(
    cluster: RabbitMQClusterServer, vhost: str, dead_letters: RabbitDeadLetters
) -> None:
    """Replay everything; if the connection is lost, begin the replay again, as an operator would."""
    revived: list[asyncio.Task[None]] = []

    def kill_and_revive() -> None:
        cluster.revive(cluster.kill_leader("dead", vhost))

    def strike(report: Any) -> None:
        if not revived and report.replayed >= 20:
            revived.append(asyncio.create_task(asyncio.to_thread(kill_and_revive)))

    async def is_replayed() -> bool:
        with contextlib.suppress(RabbitError):
            await dead_letters.replay(DeliveryFilter(), on_progress=strike)
        return await asyncio.to_thread(depth, cluster, vhost, "dead") == 0

    await wait_until_async(is_replayed, timeout_s=300, interval_s=0.5)
    await asyncio.gather(*revived)
    assert revived


def move_leader(cluster: RabbitMQClusterServer, vhost: str) -> None:
    with cluster.drain(cluster.leader_of("work", vhost)):
        pass


@pytest.mark.timeout(900)
async def test_the_delivery_limit_holds_while_the_leader_moves(cluster: RabbitMQClusterServer) -> None:
    """The broker ends a message that is always returned, after as many deliveries as its queue allows."""
    vhost, limit, messages = "limit", 3, 40
    urls = await asyncio.to_thread(cluster.create_vhost, vhost)
    limited = DEAD | KEPT | {"x-delivery-limit": limit}
    await asyncio.to_thread(declare, cluster, vhost, dead={}, work=limited)
    runs: Counter[int] = Counter()

    async def refuse(message: dict[str, Any]) -> bool:
        runs[message["number"]] += 1
        await asyncio.sleep(0.02)
        return False

    async with Publisher(urls, timeout_s=10.0) as publisher:
        await publisher.publish_many(Outgoing("work", {"number": number}) for number in range(messages))
    consumer = RabbitConsumer(urls, "work", refuse, settle="delivery_count", max_requeues=1_000, **OPTIONS)
    async with consumer:
        await wait_until_async(lambda: runs.total() > messages)
        await asyncio.to_thread(move_leader, cluster, vhost)

        async def is_over() -> bool:
            return await asyncio.to_thread(depth, cluster, vhost, "dead") >= messages

        await wait_until_async(is_over, timeout_s=120, interval_s=0.5)
    dead = await RabbitDeadLetters(urls, "dead", count_a_delivery=True).list(limit=None)

    assert {json.loads(one.body)["number"] for one in dead} == set(range(messages))
    assert {one.reason for one in dead} == {"delivery_limit"}
    assert max(runs.values()) <= limit + 1
