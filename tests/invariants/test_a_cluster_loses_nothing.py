"""A storm on a Redis Cluster: slots migrated under load, masters killed and replicas promoted, nodes paused.

Queue, engine, processor, scheduler and ``App`` work on one cluster concurrently. At the end, within two minutes after
the last fault: lost 0, effects twice 0, each tick once. Redis replicates asynchronously, so half of the messages wait
for a replica (``replicas=1``) and must all be there; missing messages of the other half have a separate column, and
each of them must have been sent shortly before a master was killed. The history is judged by scripts/check_history.py.

Some messages have a key and wait in lines. While their slot moves, the lines are on one node and the turns on another.

``CONQUIET_TORTURE=1`` makes it 60 faults instead of 6.
"""

import asyncio
import contextlib
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, select
from sqlalchemy.orm import Session
from tests.invariants import wire
from tests.invariants.histories import History, Row, redis_facts, seed_or

from conquiet import App, AppSettings
from conquiet.config import QueueConfig
from conquiet.core.backoff import Backoff
from conquiet.errors import ConquietError, GroupMissingError, MalformedMessageError, QueueError
from conquiet.processor import JobContext, KeyOrder, Processor, ProcessorSettings, RetryPolicy
from conquiet.processor.keys import keys_of
from conquiet.queue import QueueConsumer, StreamProducer
from conquiet.redis_transport.client import clone_async
from conquiet.runtime import RuntimeSettings
from conquiet.scheduler import Every, ScheduleEntry, Scheduler
from conquiet.testing import RedisClusterServer, wait_until, wait_until_async

TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
FAULTS = 60 if TORTURE else 6
DRAIN_S = 120.0
EXPLAINED_S = 5.0
"""Longest time between sending a message and a kill that has lost it."""

_SLOW_STEPS = 10
STREAMS = [f"shop-{number}" for number in range(3)]
ACCOUNTS = [f"account-{number}" for number in range(6)]
"""Keys of messages; each account belongs to one of the streams."""
ENGINE = RuntimeSettings(
    claim_idle_ms=2_000, reconnect=Backoff(base_s=0.05, cap_s=0.5), max_reconnects=1_000, recreate_group=True
)
METADATA = MetaData()
EFFECTS = Table("effects", METADATA, Column("row", Integer, primary_key=True), Column("id", String(40), nullable=False))


class Faults:
    """The faults of the cluster, one after the other, in a thread."""

    def __init__(self, cluster: RedisClusterServer, keys: list[str], count: int, history: History) -> None:
        self._cluster, self._keys, self._left = cluster, keys, count
        self._random = random.Random(history.seed)
        self._history = history
        self.may_lose: list[tuple[float, float]] = []

    def run(self) -> None:
        order = ["move", "kill", "pause", "move", "kill", "switch"]
        for number in range(self._left):
            kind = order[number % len(order)]
            # Every other move is one of a stream with lines.
            key = self._random.choice(STREAMS if number % len(order) == 0 else self._keys)
            loses_s = EXPLAINED_S if kind == "kill" else None
            with self._history.outage(f"{kind} master", loses_s=loses_s):
                getattr(self, f"_{kind}")(key)
            self._cluster.ensure_healthy()

    def _move(self, key: str) -> None:
        first = self._divided(key) if key in STREAMS else []
        for number, _ in enumerate(self._cluster.moving_slot(key, first=first)):
            if number < _SLOW_STEPS:  # a slot is on two nodes for a second at least; it may have thousands of keys
                time.sleep(0.1)

    def _divided(self, stream: str) -> list[str]:
        """Return keys to move first, once messages wait in lines: the lines before the turns, or after them."""
        keys = keys_of(stream)
        lines = [keys.waiting(account) for account in ACCOUNTS if stream_of(account) == stream]
        master = self._cluster.master_of(stream)
        wait_until(lambda: any(master.call("LLEN", line) for line in lines), interval_s=0.005)
        groups = [lines, [stream, keys.order], [keys.waiting_keys]]
        self._random.shuffle(groups)
        return [name for group in groups for name in group]

    def _kill(self, key: str) -> None:
        self.may_lose.append(before_a_kill(time.monotonic()))
        dead = self._cluster.kill_master(key)
        time.sleep(0.2)
        self._cluster.revive(dead)

    def _pause(self, key: str) -> None:
        with self._cluster.pause_node(self._cluster.master_of(key)):
            time.sleep(1.0)

    def _switch(self, key: str) -> None:
        self._cluster.switch_master(key)


class Sent:
    """The messages sent to one engine, with their times, and whether a replica has confirmed them."""

    def __init__(self, of: str, history: History) -> None:
        self._of, self._history = of, history
        self.confirmed: set[str] = set()
        self.plain: dict[str, float] = {}

    @contextlib.contextmanager
    def sending(self, name: str, *, confirmed: bool, **facts: Any) -> Iterator[None]:
        """Record the outcome of a message that is sent in the block. A message without a reply may have arrived."""
        try:
            yield
        except ConquietError:
            self._history.record("enqueue", id=name, of=self._of, expect="unsure")
            return
        # Recorded after the reply: the master lived then.
        self._history.record("enqueue", id=name, of=self._of, replicated=confirmed, **facts)
        if confirmed:
            self.confirmed.add(name)
        else:
            self.plain[name] = time.monotonic()

    def lost(self, seen: set[str], may_lose: list[tuple[float, float]]) -> set[str]:
        """Return the missing ones that were confirmed, or sent at a time at which none may be lost."""
        missing = {one: at for one, at in self.plain.items() if one not in seen}
        explained = {one for one, at in missing.items() if any(first <= at <= last for first, last in may_lose)}
        return (self.confirmed - seen) | (set(missing) - explained)


def before_a_kill(now: float) -> tuple[float, float]:
    """Return when a message was sent that only the master had which is killed now."""
    return now - EXPLAINED_S, now + 1


def queue_worker(client: Any, stop: threading.Event, seen: set[str], history: History) -> None:
    """Read and acknowledge until stopped. Entries that a lost reply left pending are read again."""
    config = QueueConfig("queue", "billing", "alice", block_ms=200, max_read_count=1)
    consumer: QueueConsumer | None = None
    while not stop.is_set():
        try:
            if consumer is None:
                consumer = QueueConsumer(client, config)
                found = list(consumer.recover_own())
            else:
                message = consumer.next()
                found = [] if message is None else [message]
            for message in found:
                history.record("deliver", id=message.payload["id"], of="queue")
                seen.add(message.payload["id"])
                history.record("commit", id=message.payload["id"])
                history.record("ack", id=message.payload["id"])
                consumer.ack(message)
        except (QueueError, GroupMissingError, MalformedMessageError):
            if consumer is not None:
                consumer.close()
            consumer = None
            time.sleep(0.05)
    if consumer is not None:
        consumer.close()


def queue_producer(client: Any, stop: threading.Event, sent: Sent) -> None:
    with StreamProducer(client, "queue") as producer:
        number = 0
        while not stop.is_set():
            number += 1
            name, confirmed = f"q-{number}", number % 2 == 0
            with sent.sending(name, confirmed=confirmed):
                producer.enqueue({"id": name}, idempotency_key=name, replicas=int(confirmed))
            time.sleep(0.01)


async def emit_until(
    stop: threading.Event, sent: Sent, prefix: str, emit: Any, key_of: Callable[[int], str] | None = None
) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        name, confirmed = f"{prefix}-{number}", number % 2 == 0
        with sent.sending(name, confirmed=confirmed, **({} if key_of is None else {"key": key_of(number)})):
            await emit(name, int(confirmed), number)
        await asyncio.sleep(0.02)


def account_of(number: int) -> str:
    """Return the key of a message: ten follow each other with the same one."""
    return ACCOUNTS[number // 10 % len(ACCOUNTS)]


def stream_of(account: str) -> str:
    """Return the stream with the messages of an account."""
    return STREAMS[ACCOUNTS.index(account) % len(STREAMS)]


def note_the_wire(history: History, patch: wire.Patch) -> None:
    """Record commits and acknowledgements of all parts in this process except queues."""

    @contextlib.contextmanager
    def noting(ctx: JobContext) -> Iterator[None]:
        history.record("deliver", id=ctx.id, of="app", n=ctx.attempt)
        wire.handle(ctx.id)
        yield

    wire.note_commits(history.record, patch)
    wire.note_stream_acks(history.record, lambda messages: [message.data["id"] for message in messages], patch)
    wire.note_app_handlers(noting, patch)


def register_sell(processor: Processor, history: History, done: Counter[str]) -> None:
    """Add a handler that fails at the first attempt of every third message."""

    @processor.handler("sell", retry=RetryPolicy.fixed(0.05, max_attempts=50))
    async def sell(ctx: JobContext) -> None:
        history.record("deliver", id=ctx.id, of="processor", n=ctx.attempt)
        if ctx.attempt == 1 and ctx.data["n"] % 3 == 0:
            history.record("retry", id=ctx.id, of="processor")
            raise LookupError
        done[ctx.id] += 1
        history.record("commit", id=ctx.id)


def register_pay(processor: Processor, history: History, paid: list[str]) -> None:
    """Add a handler of messages with keys that is slow enough for lines, and fails now and then."""

    @processor.handler("pay", retry=RetryPolicy.fixed(0.05, max_attempts=50))
    async def pay(ctx: JobContext) -> None:
        history.record("deliver", id=ctx.id, of="keyed", n=ctx.attempt)
        await asyncio.sleep(0.05)
        if ctx.attempt == 1 and ctx.data["n"] % 7 == 0:
            history.record("retry", id=ctx.id, of="keyed")
            raise LookupError
        paid.append(ctx.id)
        history.record("commit", id=ctx.id)


async def waiting_in_lines(client: Any) -> int:
    """Return how many messages with a key have a turn or wait for one."""
    async with clone_async(client) as own:
        reports = [await KeyOrder(own, stream).report() for stream in STREAMS]
    return sum(report.holders + report.waiting for report in reports)


@pytest.mark.timeout(1_800 if TORTURE else 300)
async def test_a_storm_on_a_cluster_loses_nothing_and_does_nothing_twice(  # noqa: C901, PLR0915 - one storm, in order
    redis_cluster: RedisClusterServer,
    tmp_path: Path,
    new_history: Callable[..., History],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(url)
    METADATA.create_all(engine)
    sync: Any = redis.RedisCluster.from_url(redis_cluster.node_url)
    client = redis.asyncio.RedisCluster.from_url(redis_cluster.node_url)
    with contextlib.closing(redis.Redis.from_url(redis_cluster.node_url, decode_responses=True)) as plain:
        facts = redis_facts(plain)
    history = new_history(
        "a Redis Cluster in motion",
        Row("QueueConsumer, Processor, Scheduler, App", "SQLite", "Redis Cluster: 3 masters, 3 replicas"),
        seed=seed_or(7),
        promise={
            "effects": "once",
            "stages": ["queue", "processor", "keyed", "app"],
            "repeatable": ["queue", "processor", "keyed"],
            "order": {"keyed": "enqueue"},
            "attempts": True,
            "commits": True,
            "ticks": {"beat": 1_000},
        },
        servers=[facts],
        recovery_s=DRAIN_S,
    )
    note_the_wire(history, monkeypatch.setattr)
    stop = threading.Event()
    sent = {name: Sent(name, history) for name in ("queue", "processor", "keyed", "app")}
    queue_seen: set[str] = set()
    done: Counter[str] = Counter()
    paid: list[str] = []

    settings = ProcessorSettings(retention=None, settle_attempts=100, settle_backoff=Backoff(base_s=0.05, cap_s=0.5))
    processor = Processor(client, STREAMS, concurrency=4, settings=settings, runtime=ENGINE)
    register_sell(processor, history, done)
    register_pay(processor, history, paid)

    app = App(
        "storm",
        redis=f"{redis_cluster.url}",
        database=url,
        settings=AppSettings(processor=settings, runtime=ENGINE, relay_poll_s=0.05),
    )
    app.create_tables()

    @app.handler("effect", retry=RetryPolicy.fixed(0.05, max_attempts=50))
    def effect(data: dict[str, Any], session: Session) -> None:
        session.execute(insert(EFFECTS).values(id=data["id"]))

    sender = Processor(client, [app.assembly.stream], settings=settings)
    beat = ScheduleEntry("beat", Every(1), "beat", "ticks", catch_up="all")
    hosts = [Scheduler(client, [beat], group="hosts") for _ in range(2)]
    faults = Faults(redis_cluster, [*STREAMS, "queue", "ticks", app.assembly.stream], FAULTS, history)

    async def sell_one(name: str, replicas: int, number: int) -> None:
        stream = STREAMS[number % len(STREAMS)]
        delay_s = 0.1 if number % 4 == 0 else None
        await processor.emit("sell", {"n": number}, id=name, stream=stream, delay_s=delay_s, replicas=replicas)

    async def pay_one(name: str, replicas: int, number: int) -> None:
        account = account_of(number)
        await processor.emit("pay", {"n": number}, id=name, stream=stream_of(account), key=account, replicas=replicas)

    async def effect_one(name: str, replicas: int, _number: int) -> None:
        await sender.emit("effect", {"id": name}, id=name, replicas=replicas)

    def effects() -> list[str]:
        with engine.connect() as connection:
            return list(connection.execute(select(EFFECTS.c.id)).scalars())

    threads = [
        threading.Thread(target=queue_worker, args=(sync, stop_queue := threading.Event(), queue_seen, history)),
        threading.Thread(target=queue_producer, args=(sync, stop, sent["queue"])),
    ]
    for thread in threads:
        thread.start()
    ticking = [asyncio.create_task(host.start()) for host in hosts]
    try:
        async with processor, app:
            emitting = [
                asyncio.create_task(emit_until(stop, sent["processor"], "p", sell_one)),
                asyncio.create_task(emit_until(stop, sent["keyed"], "k", pay_one, account_of)),
                asyncio.create_task(emit_until(stop, sent["app"], "a", effect_one)),
            ]
            await asyncio.to_thread(faults.run)
            history.recovery()
            stop.set()
            await asyncio.gather(*emitting)
            threads[1].join()

            def is_drained() -> bool:
                seen = {"queue": queue_seen, "processor": set(done), "keyed": set(paid), "app": set(effects())}
                return not any(sent[name].lost(seen[name], faults.may_lose) for name in sent)

            with contextlib.suppress(TimeoutError):  # the judgement names the missing messages
                await wait_until_async(is_drained, timeout_s=DRAIN_S, interval_s=0.3)
                history.record("drained")
    finally:
        stop.set()
        stop_queue.set()
        for host in hosts:
            host.stop()
        await asyncio.gather(*ticking, return_exceptions=True)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        for host in hosts:
            await host.close()
        await sender.close()
    ticks = [json.loads(fields[b"data"])["id"] for _, fields in sync.xrange("ticks")]
    history.record("state", effects=sorted(queue_seen), of="queue")
    history.record("state", effects=sorted(done.elements()), of="processor")
    history.record("state", effects=paid, of="keyed")
    history.record("state", effects=effects(), of="app")
    history.record("state", left={"turns and lines": await waiting_in_lines(client)})
    history.record("state", ticks={"beat": [int(tick.rpartition("@")[2]) for tick in ticks]})
    await client.aclose()
    sync.close()
    engine.dispose()

    assert all(one.confirmed and one.plain for one in sent.values())
    assert history.judge()["examples"] == {}
