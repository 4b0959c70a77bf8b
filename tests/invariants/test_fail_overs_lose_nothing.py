"""A Sentinel promotes the replica, again and again, while queue, processor, scheduler and ``App`` work.

Every second fail-over is planned; before the others the master is killed. Redis replicates asynchronously, so half of
the messages wait for the replica (``replicas=1``) and must all be there; missing messages of the other half have a
separate column, and each of them must have been sent shortly before a master was killed, or during a planned fail-over:
Sentinel turns the old master into a replica some ten seconds after it has promoted the other one, and until then the
old one accepts what it will discard.

Runs with ``make torture`` only (see ``conftest``): 20 fail-overs, or the number in ``CONQUIET_FAILOVERS``.
"""

import asyncio
import contextlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from sqlalchemy import create_engine, insert, select
from sqlalchemy.orm import Session
from tests.integration.cluster.test_sentinel import Sentinel, Watched
from tests.invariants.histories import History, Row, redis_facts, seed_or
from tests.invariants.test_a_cluster_loses_nothing import (
    DRAIN_S,
    EFFECTS,
    ENGINE,
    EXPLAINED_S,
    METADATA,
    Sent,
    before_a_kill,
    emit_until,
    note_the_wire,
    queue_producer,
    queue_worker,
    register_sell,
)

from conquiet import App, AppSettings
from conquiet.core.backoff import Backoff
from conquiet.processor import Processor, ProcessorSettings, RetryPolicy
from conquiet.scheduler import Every, ScheduleEntry, Scheduler
from conquiet.testing import RedisServer, wait_until, wait_until_async

FAILOVERS = int(os.environ.get("CONQUIET_FAILOVERS", "20"))


@pytest.fixture
async def watched(private_redis: Callable[..., RedisServer]) -> AsyncIterator[Watched]:
    master, replica = (private_redis(extra_args=("--repl-diskless-sync-delay", "0")) for _ in range(2))
    replica.call("REPLICAOF", master.host, str(master.port))
    with Sentinel(master) as sentinel:
        wait_until(lambda: len(sentinel.call("SENTINEL", "REPLICAS", "shop") or ()) == 1)
        yield Watched([master, replica], sentinel)


class FailOvers:
    """Fail-overs, one after the other, in a thread."""

    def __init__(self, watched: Watched, history: History) -> None:
        self._watched, self._history = watched, history
        self.may_lose: list[tuple[float, float]] = []

    def run(self) -> None:
        for number in range(FAILOVERS):
            if number % 2 == 0:
                began = time.monotonic()
                with self._history.outage("planned fail-over", loses_s=0.0):
                    self._watched.fail_over()
                self.may_lose.append((began, time.monotonic()))
            else:
                with self._history.outage("kill master", loses_s=EXPLAINED_S):
                    self._kill()
            time.sleep(1.0)  # some work in between

    def _kill(self) -> None:
        port = self._watched.master_port
        old = next(server for server in self._watched.servers if server.port == port)
        new = next(server for server in self._watched.servers if server.port != port)
        wait_until(lambda: b"master_link_status:up" in bytes(new.call("INFO", "replication")))
        self.may_lose.append(before_a_kill(time.monotonic()))
        old.kill()

        def accepted() -> bool:
            with contextlib.suppress(OSError):  # it has not queried the state of the replica yet
                self._watched.sentinel.call("SENTINEL", "FAILOVER", "shop")
            return self._watched.master_port != port

        wait_until(accepted, timeout_s=120, interval_s=0.5)
        wait_until(lambda: b"role:master" in bytes(new.call("INFO", "replication")))
        old.restart()
        old.call("REPLICAOF", new.host, str(new.port))  # Sentinel would do so, within a minute


@pytest.mark.timeout(3_600)
async def test_fail_overs_by_sentinel_lose_nothing_and_do_nothing_twice(  # noqa: PLR0915 - one storm, in order
    watched: Watched, tmp_path: Path, new_history: Callable[..., History], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(url)
    METADATA.create_all(engine)
    with contextlib.closing(redis.Redis.from_url(watched.servers[0].url, decode_responses=True)) as plain:
        facts = redis_facts(plain)
    history = new_history(
        "fail-overs by Sentinel",
        Row("QueueConsumer, Processor, Scheduler, App", "SQLite", "Redis with a replica, and a Sentinel"),
        seed=seed_or(13),
        promise={
            "effects": "once",
            "stages": ["queue", "processor", "app"],
            "repeatable": ["queue", "processor"],
            "attempts": True,
            "commits": True,
            "ticks": {"beat": 1_000},
        },
        servers=[facts],
        recovery_s=DRAIN_S,
    )
    note_the_wire(history, monkeypatch.setattr)
    address = [("127.0.0.1", watched.sentinel.port)]
    sentinels: tuple[Any, Any] = (
        redis.asyncio.sentinel.Sentinel(address),  # type: ignore[no-untyped-call]
        redis.sentinel.Sentinel(address),  # type: ignore[no-untyped-call]
    )
    client, sync = (sentinel.master_for("shop") for sentinel in sentinels)
    settings = ProcessorSettings(retention=None, settle_attempts=200, settle_backoff=Backoff(base_s=0.05, cap_s=0.5))
    sent = {name: Sent(name, history) for name in ("queue", "processor", "app")}
    queue_seen: set[str] = set()
    done: Counter[str] = Counter()
    processor = Processor(client, ["orders"], concurrency=4, settings=settings, runtime=ENGINE)
    register_sell(processor, history, done)

    app_settings = AppSettings(processor=settings, runtime=ENGINE, relay_poll_s=0.05)
    app = App("storm", redis=client, database=url, settings=app_settings)
    app.create_tables()

    @app.handler("effect", retry=RetryPolicy.fixed(0.05, max_attempts=50))
    def effect(data: dict[str, Any], session: Session) -> None:
        session.execute(insert(EFFECTS).values(id=data["id"]))

    def effects() -> list[str]:
        with engine.connect() as connection:
            return list(connection.execute(select(EFFECTS.c.id)).scalars())

    async def sell_one(name: str, replicas: int, number: int) -> None:
        delay_s = 0.1 if number % 4 == 0 else None
        await processor.emit("sell", {"n": number}, id=name, delay_s=delay_s, replicas=replicas)

    async def effect_one(name: str, replicas: int, _number: int) -> None:
        await sender.emit("effect", {"id": name}, id=name, replicas=replicas)

    sender = Processor(client, [app.assembly.stream], settings=settings)
    host = Scheduler(client, [ScheduleEntry("beat", Every(1), "beat", "ticks", catch_up="all")], group="hosts")
    faults = FailOvers(watched, history)
    stop, stop_queue = threading.Event(), threading.Event()
    threads = [
        threading.Thread(target=queue_worker, args=(sync, stop_queue, queue_seen, history)),
        threading.Thread(target=queue_producer, args=(sync, stop, sent["queue"])),
    ]
    for thread in threads:
        thread.start()
    ticking = asyncio.create_task(host.start())
    try:
        async with processor, app:
            emitting = [
                asyncio.create_task(emit_until(stop, sent["processor"], "p", sell_one)),
                asyncio.create_task(emit_until(stop, sent["app"], "a", effect_one)),
            ]
            await asyncio.to_thread(faults.run)
            history.recovery()
            stop.set()
            await asyncio.gather(*emitting)
            await asyncio.to_thread(threads[1].join)

            def is_drained() -> bool:
                seen = {"queue": queue_seen, "processor": set(done), "app": set(effects())}
                return not any(sent[name].lost(seen[name], faults.may_lose) for name in sent)

            with contextlib.suppress(TimeoutError):  # the judgement names the missing messages
                await wait_until_async(is_drained, timeout_s=DRAIN_S, interval_s=0.3)
                history.record("drained")
    finally:
        stop.set()
        stop_queue.set()
        host.stop()
        await asyncio.gather(ticking, return_exceptions=True)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        await host.close()
        await sender.close()
    ticks = [json.loads(fields[b"data"])["id"] for _, fields in sync.xrange("ticks")]
    history.record("state", effects=sorted(queue_seen), of="queue")
    history.record("state", effects=sorted(done.elements()), of="processor")
    history.record("state", effects=effects(), of="app")
    history.record("state", ticks={"beat": [int(tick.rpartition("@")[2]) for tick in ticks]})
    await client.aclose()
    sync.close()
    await sentinels[0].sentinels[0].aclose()
    sentinels[1].sentinels[0].close()
    engine.dispose()

    assert all(one.confirmed and one.plain for one in sent.values())
    assert history.judge()["examples"] == {}
