"""Many processes, real time, kill -9: each tick is fired once, none is lost, and a dead host delays no other.

``CONQUIET_TORTURE=1`` makes it two minutes of three hosts and three thousand kills; without it, seconds.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
import redis
from tests.invariants.histories import History, Row, redis_facts, seed_or

from conquiet.scheduler import Schedules
from conquiet.testing import wait_until

TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
STEADY_S = 120 if TORTURE else 6
KILLS = 3_000 if TORTURE else 60
KILLERS = 6 if TORTURE else 3
SEED = seed_or(0)
STEPS_MS = {"jitter": 500, "cron": 1_000} | {f"tenth-{number}": 100 for number in range(4)}
NAMES = ["cron", "jitter", "tenth-0", "tenth-1", "tenth-2", "tenth-3"]

HOST = """
import asyncio, os, random, signal, sys, time
import redis.asyncio
from conquiet.scheduler import Cron, Every, ScheduleEntry, Scheduler

from tests.invariants.recorder import Recorder

url, stream, group, kills, seed, history = sys.argv[1:]
record = Recorder(history)
entries = [ScheduleEntry(f"tenth-{n}", Every(0.1), "beat", stream, misfire_grace_s=600) for n in range(4)]
entries += [ScheduleEntry("jitter", Every(0.5), "beat", stream, misfire_grace_s=600, jitter_s=0.3)]
entries += [ScheduleEntry("cron", Cron("* * * * * *", "Australia/Lord_Howe"), "beat", stream, misfire_grace_s=600)]

async def run():
    await Scheduler(redis.asyncio.Redis.from_url(url), entries, group=group).start()

# One process that has imported everything forks a host, kills it after a moment, forks the next: hundreds of
# deaths at any point of a round, without paying for an interpreter each time.
chance = random.Random(int(seed))
print("ready", flush=True)
for _ in range(int(kills)):
    host = os.fork()
    if not host:
        asyncio.run(run())
        os._exit(0)
    time.sleep(chance.uniform(0.01, 0.25))
    record("fault", kind="kill -9", target=host)
    os.kill(host, signal.SIGKILL)
    _, status = os.waitpid(host, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL  # it was alive
if int(kills) == 0:
    asyncio.run(run())
"""


class StartHost(Protocol):
    def __call__(self, kills: int, seed: int, history: str = "") -> subprocess.Popen[str]: ...


@pytest.fixture
def start_host(redis_url: str, key_prefix: str) -> Iterator[StartHost]:
    """``start_host(kills, seed)`` starts a process; 0 kills is a host that stays."""
    running: list[subprocess.Popen[str]] = []

    def start(kills: int, seed: int, history: str = "") -> subprocess.Popen[str]:
        place = (redis_url, f"{key_prefix}beats", f"{key_prefix}hosts", str(kills), str(seed), history)
        process = subprocess.Popen(
            [sys.executable, "-c", HOST, *place], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the group: it may have a forked host
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def fires(client: "redis.Redis", stream: str) -> dict[str, list[tuple[int, int]]]:
    """Due time and time of writing of every fire, by entry."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    entries: Any = client.xrange(stream)
    for entry_id, fields in entries:
        name, due = json.loads(fields[b"data"])["id"].rsplit("@", 1)
        found[name].append((int(due), int(entry_id.split(b"-")[0])))
    return found


def assert_each_tick_once(found: dict[str, list[tuple[int, int]]]) -> None:
    steps = STEPS_MS
    assert sorted(found) == NAMES
    for name, written in found.items():
        dues = [due for due, _ in written]
        step = steps[name]
        assert dues == list(range(dues[0], dues[-1] + 1, step)), name


class Stalls:
    """Return how long this machine delays a process that should run: not the scheduler's fault."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    def sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (before := time.monotonic()) < end:
            time.sleep(0.02)
            self.longest_s = max(self.longest_s, time.monotonic() - before - 0.02)


def test_each_tick_fires_once_and_a_killed_host_delays_none(
    start_host: StartHost, redis_url: str, key_prefix: str
) -> None:
    client, stream = redis.Redis.from_url(redis_url), f"{key_prefix}beats"
    hosts = [start_host(0, seed) for seed in range(3)]
    wait_until(lambda: client.xlen(stream) > 10)
    stalls = Stalls()
    stalls.sleep(STEADY_S / 2)

    hosts[0].kill()
    hosts[0].wait()
    killed_ms = int(time.time() * 1_000)
    stalls.sleep(STEADY_S / 2)

    found = fires(client, stream)
    assert_each_tick_once(found)
    after = [at - due for name, written in found.items() if name != "jitter" for due, at in written if due > killed_ms]
    assert len(after) > STEADY_S * 10
    assert min(after) >= 0
    assert max(after) <= 1_000 + 2_000 * stalls.longest_s
    client.close()


def test_a_storm_of_kills_loses_no_tick_and_fires_none_twice(
    start_host: StartHost, redis_url: str, key_prefix: str, new_history: Callable[..., History]
) -> None:
    client, stream = redis.Redis.from_url(redis_url), f"{key_prefix}beats"
    with contextlib.closing(redis.Redis.from_url(redis_url, decode_responses=True)) as plain:
        facts = redis_facts(plain)
    history = new_history(
        "scheduler hosts killed",
        Row("Scheduler", "none", f"one Redis, {KILLERS} hosts"),
        seed=SEED,
        promise={"ticks": STEPS_MS},
        servers=[facts],
    )
    storms = [start_host(KILLS // KILLERS + 1, SEED + one, str(history.folder)) for one in range(KILLERS)]
    for storm in storms:
        assert storm.wait(timeout=500) == 0
    killed_until_ms = int(time.time() * 1_000)
    history.recovery()

    start_host(0, 0)  # the next host finds everything in order

    def all_go_on() -> bool:
        found = fires(client, stream)
        return sorted(found) == NAMES and all(written[-1][0] > killed_until_ms for written in found.values())

    wait_until(all_go_on)
    history.record("drained")

    found = fires(client, stream)
    assert_each_tick_once(found)
    history.record("state", ticks={name: [due for due, _ in written] for name, written in found.items()})
    assert history.judge()["examples"] == {}
    client.close()


async def test_the_ledger_agrees_with_the_stream_after_hosts_died(
    start_host: StartHost, redis_url: str, key_prefix: str
) -> None:
    """Fires are counted in the same step that writes them."""
    client, stream = redis.Redis.from_url(redis_url), f"{key_prefix}beats"
    assert await asyncio.to_thread(start_host(15, 7).wait, 60) == 0

    async with Schedules(client, group=f"{key_prefix}hosts") as schedules:
        counted = {listed.entry.name: (listed.fired, listed.missed) for listed in await schedules.list_entries()}
    written = {name: (len(fired), 0) for name, fired in fires(client, stream).items()}
    assert counted == dict.fromkeys(counted, (0, 0)) | written
    client.close()
