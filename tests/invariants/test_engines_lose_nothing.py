"""Many processes, killed and stopped at random: nothing is lost, and every second run has its cause.

The large storms (4 engines, 200 kills, 200,000 messages; 1,000 stops; a million messages for the soak) run with
``CONQUIET_TORTURE=1``; ``make test`` runs small versions of the same code.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.invariants.connections import cut_at_redis
from tests.invariants.histories import History, Row, redis_facts, seed_or
from tests.invariants.recorder import packed

from conquiet.testing import wait_until

TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
CONCURRENCY, PREFETCH = 8, 16

ENGINE = """
import asyncio, os, sys
import redis.asyncio
from conquiet.runtime import Consumer
from conquiet.signals import install_termination_handlers
from tests.invariants import wire
from tests.invariants.recorder import Recorder

url, claim_idle_ms, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
record = Recorder(sys.argv[4])
record.watch(0.25)
wire.note_stream_acks(record, lambda messages: [message.data["n"] for message in messages])

async def main():
    # No time limit: one that passes while the process stands still would end the handler before it asks for its lease.
    async with redis.asyncio.Redis.from_url(url, socket_timeout=None) as client:
        async def handler(message, ctx):
            # What a run leaves behind is written by one command, like a row in a database.
            key = message.id
            if mode == "slow":
                await client.xadd("began", {"id": key, "pid": os.getpid(), "count": message.delivery_count})
                while not (await client.exists("leave") or ctx.lease_lost or ctx.lease_remaining_s <= 0):
                    await asyncio.sleep(0.02)
                try:
                    ctx.check_lease()
                except Exception as error:
                    await client.xadd("told", {"id": key, "pid": os.getpid(), "error": type(error).__name__})
                    raise
                await client.xadd("ran", {"id": key, "pid": os.getpid(), "count": message.delivery_count})
                return
            record("deliver", id=message.data["n"], n=message.delivery_count)
            await asyncio.sleep(0.001)
            try:
                await client.xadd("ran", {"id": key, "pid": os.getpid(), "count": message.delivery_count})
            except Exception:
                record("retry", id=message.data["n"])
                raise
            record("commit", id=message.data["n"])
        engine = Consumer(streams=["work"], redis=client, handler=handler, concurrency=8, prefetch=16,
                          claim_idle_ms=claim_idle_ms, max_deliveries=None, grace_s=10.0)
        with install_termination_handlers(engine.stop):
            report = await engine.start()
        print(report.released, report.unreleased, len(report.abandoned), len(report.unacknowledged), flush=True)

asyncio.run(main())
"""


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(redis_url, protocol=2, decode_responses=True)
    yield client
    client.close()


@pytest.fixture
def spawn(redis_url: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    script = tmp_path / "engine.py"
    script.write_text(ENGINE, encoding="utf-8")
    children: list[subprocess.Popen[str]] = []

    def start(claim_idle_ms: int = 1_000, mode: str = "quick", history: str = "") -> subprocess.Popen[str]:
        argv = [sys.executable, str(script), redis_url, str(claim_idle_ms), mode, history]
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        children.append(child)
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGCONT)
            child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def enqueue(raw: redis.Redis, count: int, first: int = 0) -> list[str]:
    ids: list[str] = []
    for start in range(first, first + count, 1_000):
        pipe = raw.pipeline(transaction=False)
        for number in range(start, min(start + 1_000, first + count)):
            pipe.xadd("work", {"data": json.dumps({"n": number})})
        ids += pipe.execute()
    return ids


def runs(raw: redis.Redis, key: str = "ran") -> list[dict[str, str]]:
    entries: Any = raw.xrange(key)  # text: the client decodes
    return [fields for _, fields in entries]


def finish(history: History, raw: redis.Redis, ids: list[str], leaked: dict[str, Any] | None = None) -> None:
    """Add what the server holds at the end, and judge."""
    numbers = {message_id: number for number, message_id in enumerate(ids)}
    (group,) = raw.xinfo_groups("work")
    history.record("state", effects=packed(numbers[row["id"]] for row in runs(raw)))
    history.record("state", left={"pending": group["pending"], "unread": group["lag"]}, leaked=leaked or {})
    assert history.judge()["examples"] == {}


def test_a_storm_of_kills_loses_nothing(
    raw: redis.Redis,
    spawn: Callable[..., subprocess.Popen[str]],
    record_property: Callable[[str, object], None],
    new_history: Callable[..., History],
) -> None:
    messages, kills = (200_000, 200) if TORTURE else (2_000, 6)
    seed = seed_or(2)
    rng = random.Random(seed)
    history = new_history(
        "engines killed at random",
        Row("runtime.Consumer", "none", "one Redis, 4 processes"),
        seed=seed,
        promise={"effects": "at least once", "attempts": True, "commits": True},
        servers=[redis_facts(raw)],
        claim_idle_s=1.0,
    )
    folder = str(history.folder)
    ids = enqueue(raw, messages)
    history.record("enqueue", range=[0, messages])
    engines = [spawn(history=folder) for _ in range(4)]
    wait_until(lambda: raw.xlen("ran") > 50)
    killed = 0
    while killed < kills and raw.xlen("ran") < messages:
        time.sleep(rng.uniform(0.05, 0.35))  # the storm's own rhythm; nothing is being waited for
        victim = rng.randrange(4)
        history.kill(engines[victim].pid)
        engines[victim].kill()
        engines[victim].wait()
        engines[victim] = spawn(history=folder)
        killed += 1
    history.recovery()
    wait_until(lambda: raw.xpending("work", "processor")["pending"] == 0, timeout_s=120, interval_s=0.2)
    wait_until(lambda: raw.xinfo_groups("work")[0]["lag"] == 0, timeout_s=120)
    wait_until(lambda: raw.xpending("work", "processor")["pending"] == 0, timeout_s=120, interval_s=0.2)
    history.record("drained")

    ran = Counter(row["id"] for row in runs(raw))
    doubles = {message_id: count for message_id, count in ran.items() if count > 1}
    record_property("storm", f"messages={messages} kills={killed} doubles={len(doubles)}")
    assert set(ran) == set(ids)
    # A kill between a run and its acknowledgement repeats at most what that engine had in flight.
    assert sum(count - 1 for count in doubles.values()) <= killed * (CONCURRENCY + PREFETCH)
    highest: dict[str, int] = {}  # of two concurrent ones, the first may be the last to write
    for row in runs(raw):
        highest[row["id"]] = max(highest.get(row["id"], 0), int(row["count"]))
    assert all(highest[message_id] > 1 for message_id in doubles)
    finish(history, raw, ids)


def test_a_storm_of_cut_connections_loses_nothing(
    raw: redis.Redis, spawn: Callable[..., subprocess.Popen[str]], new_history: Callable[..., History]
) -> None:
    """Redis closes single connections of the engines and of their handlers, at any moment of a message's life."""
    messages, cuts = (200_000, 3_000) if TORTURE else (1_000, 15)
    seed = seed_or(4)
    rng = random.Random(seed)
    history = new_history(
        "connections of engines cut",
        Row("runtime.Consumer", "none", "one Redis, 3 processes"),
        seed=seed,
        promise={"effects": "at least once", "commits": True},
        servers=[redis_facts(raw)],
        claim_idle_s=1.0,
    )
    engines = [spawn(history=str(history.folder)) for _ in range(3)]
    ids: list[str] = []
    done = 0
    while done < cuts or len(ids) < messages:
        if len(ids) - raw.xlen("ran") < 2_000:  # always some under way
            history.record("enqueue", range=[len(ids), len(ids) + 1_000])
            ids += enqueue(raw, 1_000, first=len(ids))
        time.sleep(rng.uniform(0.0, 0.03))  # the storm's own rhythm
        victim, began = rng.choice(engines), time.monotonic()
        if done < cuts and raw.xlen("ran") and cut_at_redis(raw, victim.pid, rng):
            history.record("fault", kind="connection cut at Redis", target=victim.pid, began=began)
            done += 1
        assert all(engine.poll() is None for engine in engines)
    history.recovery()
    wait_until(lambda: raw.xinfo_groups("work")[0]["lag"] == 0, timeout_s=300, interval_s=0.1)
    wait_until(lambda: raw.xpending("work", "processor")["pending"] == 0, timeout_s=120, interval_s=0.1)
    history.record("drained")

    assert {row["id"] for row in runs(raw)} == set(ids)
    finish(history, raw, ids)


def test_deployments_strand_nothing_and_charge_nothing(
    raw: redis.Redis, spawn: Callable[..., subprocess.Popen[str]], new_history: Callable[..., History]
) -> None:
    """SIGTERM at random moments: unstarted messages return uncharged, started ones are finished."""
    messages, stops = (100_000, 1_000) if TORTURE else (1_500, 6)
    seed = seed_or(3)
    rng = random.Random(seed)
    history = new_history(
        "engines deployed at random",
        Row("runtime.Consumer", "none", "one Redis, 3 processes"),
        seed=seed,
        promise={"effects": "once", "attempts": True, "commits": True},
        servers=[redis_facts(raw)],
    )
    folder = str(history.folder)
    ids = enqueue(raw, messages)
    history.record("enqueue", range=[0, messages])
    engines = [spawn(claim_idle_ms=60_000, history=folder) for _ in range(3)]
    wait_until(lambda: raw.xlen("ran") > 20)
    for _ in range(stops):
        time.sleep(rng.uniform(0.02, 0.15))  # the storm's own rhythm
        victim = rng.randrange(3)
        history.record("fault", kind="SIGTERM", target=engines[victim].pid, charges=False)
        engines[victim].terminate()
        out, _ = engines[victim].communicate(timeout=60)
        if engines[victim].returncode == 0:  # a SIGTERM before the handlers are there simply ends it
            assert out.split()[1:] == ["0", "0", "0"]
        engines[victim] = spawn(claim_idle_ms=60_000, history=folder)
    history.recovery()
    wait_until(lambda: raw.xlen("ran") >= messages, timeout_s=120, interval_s=0.1)
    wait_until(lambda: raw.xpending("work", "processor")["pending"] == 0, timeout_s=120)
    history.record("drained")

    rows = runs(raw)
    assert sorted(row["id"] for row in rows) == sorted(ids)
    assert {row["count"] for row in rows} == {"1"}
    finish(history, raw, ids, leaks_of(engines, raw, history) if TORTURE else {})


def leaks_of(engines: list["subprocess.Popen[str]"], raw: redis.Redis, history: History) -> dict[str, Any]:
    """Return what engines that were stopped have left behind. A name with released messages is removed within 30 s."""
    living = {str(engine.pid) for engine in engines}

    def strangers() -> list[str]:
        names = [row["name"] for row in raw.xinfo_consumers("work", "processor")]
        return [name for name in names if name.rpartition("-")[2] not in living]

    with contextlib.suppress(TimeoutError):
        wait_until(lambda: not strangers(), timeout_s=60, interval_s=0.5)
    names = strangers()
    for engine in engines:
        engine.terminate()
        engine.communicate(timeout=60)
    keys = sorted(set(raw.keys("*work*")) - {"work"})
    return {"consumer names": names, "keys": keys, "processes": history.alive()}


def test_an_engine_stopped_past_the_threshold_takes_nothing_back(
    raw: redis.Redis, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """SIGSTOP is a machine that hangs. The other engine takes over; the first wakes up and must not commit."""
    (message_id,) = enqueue(raw, 1)
    first = spawn(claim_idle_ms=5_000, mode="slow")
    wait_until(lambda: raw.exists("began"))
    first.send_signal(signal.SIGSTOP)
    second = spawn(claim_idle_ms=5_000, mode="slow")
    wait_until(lambda: raw.xlen("began") == 2)
    first.send_signal(signal.SIGCONT)
    wait_until(lambda: raw.exists("told"))
    raw.set("leave", "1")
    wait_until(lambda: raw.exists("ran"))
    wait_until(lambda: raw.xpending("work", "processor")["pending"] == 0)

    assert [(row["id"], row["pid"]) for row in runs(raw, "told")] == [(message_id, str(first.pid))]
    assert [(row["id"], row["pid"], row["count"]) for row in runs(raw)] == [(message_id, str(second.pid), "2")]
