"""Jobs are cancelled at random moments while workers are killed and stopped: each has its effect once, or is cancelled.

Never both, never neither. Half of the handlers are coroutines, half are threads; a third of the jobs are delayed.
Workers are killed, and stopped for longer than the claim threshold, so that two of them run one job.

``CONQUIET_TORTURE=1`` makes it 10,000 jobs. ``CONQUIET_PLANTED=redis-decides`` plants a bug (the inbox does not
decide), with which the test has to fail.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from sqlalchemy import create_engine, text
from tests.invariants.histories import History, Row, database_facts, redis_facts, seed_or

from conquiet.management import JobAdmin, JobChange
from conquiet.processor import Emitter, NewMessage
from conquiet.processor.keys import Keys, keys_of
from conquiet.redis_transport.client import clone_async
from conquiet.testing import PostgresServer, wait_until_async
from conquiet.transactional import create_tables

WORKER = Path(__file__).with_name("cancel_worker.py")
TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
BUG = os.environ.get("CONQUIET_PLANTED", "")
JOBS = int(os.environ.get("CONQUIET_JOBS", "10000" if TORTURE else "200"))
CREW = 3
STOPPED_S = 1.5


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with PostgresServer() as server:
        engine = create_engine(server.url)
        create_tables(engine)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE effect (id BIGSERIAL PRIMARY KEY, job TEXT NOT NULL)"))
        engine.dispose()
        yield server.url


class Crew:
    """Workers that are killed and stopped, and replaced."""

    def __init__(self, settings: dict[str, str], history: History) -> None:
        self._history = history
        self._zygote = subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._pids: list[int] = []
        self.kills = 0
        self.stops = 0

    async def storm(self, rng: random.Random, over: asyncio.Event) -> None:
        """Kill or stop one worker after the other until it is over."""
        while not over.is_set():
            await asyncio.sleep(0.15 + 0.35 * rng.random())
            pid = rng.choice(self._pids)
            if rng.random() < 0.15:
                self.stops += 1
                self._history.stop(pid)
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(STOPPED_S)
                self._history.resume(pid)
                os.kill(pid, signal.SIGCONT)
            else:
                self.kills += 1
                self._history.kill(pid)
                os.kill(pid, signal.SIGKILL)
                self._pids.remove(pid)
                await self.start()

    async def start(self) -> None:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write("w\n")
        self._zygote.stdin.flush()
        self._pids.append(int(await asyncio.to_thread(self._zygote.stdout.readline)))

    def end(self) -> None:
        """End the zygote, which ends its workers."""
        assert self._zygote.stdin is not None
        for pid in self._pids:
            os.kill(pid, signal.SIGCONT)
        self._zygote.stdin.close()
        self._zygote.wait(60)
        assert self._zygote.stdout is not None
        self._zygote.stdout.close()


@pytest.mark.timeout(3_600 if TORTURE else 240)
async def test_each_job_has_its_effect_once_or_is_cancelled(
    database: str, redis_url: str, key_prefix: str, new_history: Callable[..., History]
) -> None:
    seed = seed_or(20)
    rng = random.Random(seed)
    keys = keys_of(f"{key_prefix}orders")
    history = new_history(
        "jobs cancelled at random",
        Row("Processor, inbox, cancelled jobs", "PostgreSQL", "one Redis, 3 processes"),
        seed=seed,
        promise={"effects": "once", "commits": True},
        servers=_facts(redis_url, database),
        recovery_s=180.0,
        claim_idle_s=1.0,
    )
    folder = str(history.folder)
    settings = {"db": database, "redis": redis_url, "stream": keys.stream, "bug": BUG, "history": folder}
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        await client.xgroup_create(keys.stream, "processor", "0", mkstream=True)
        crew = Crew(settings, history)
        over = asyncio.Event()
        try:
            for _ in range(CREW):
                await crew.start()
            storm = asyncio.create_task(crew.storm(rng, over))
            answers = await _emit_and_cancel(client, keys, rng, history)
            over.set()
            await storm
            history.recovery()
            await wait_until_async(lambda: _is_quiet(client, keys), timeout_s=180)
            history.record("drained")
            states = await _states(client, keys, answers)
        finally:
            crew.end()
    effects = _effects(database)

    cancelled = {job for job, state in states.items() if state == "cancelled"}
    print(f"{JOBS} jobs, {len(cancelled)} cancelled, {crew.kills} kills, {crew.stops} stops")  # noqa: T201 - for the report
    assert crew.kills
    assert cancelled
    assert max(effects.values()) == 1
    assert cancelled & effects.keys() == set()
    assert cancelled | effects.keys() == {f"job-{number}" for number in range(JOBS)}
    # The reply to an operator states what happened.
    assert {job for job, change in answers.items() if change is JobChange.CANCELLED} <= cancelled
    assert {job for job, change in answers.items() if change is JobChange.FINISHED} <= effects.keys()
    for job in cancelled:
        history.record("cancel", id=job, ok=True)
    history.record("state", effects=list(effects.elements()))
    assert history.judge(publish=not BUG)["examples"] == {}


async def _emit_and_cancel(
    client: redis.asyncio.Redis, keys: Keys, rng: random.Random, history: History
) -> dict[str, JobChange]:
    """Emit jobs and cancel each of them at a random moment of its life. Return the results of the cancellations."""
    own = clone_async(client)
    emitter, jobs = Emitter(own, keys.stream), JobAdmin(own, keys.stream)
    answers: dict[str, JobChange] = {}
    limit = asyncio.Semaphore(12)

    async def cancel(job: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        async with limit:
            answers[job] = (await jobs.cancel(job, timeout_s=30)).change

    async with asyncio.TaskGroup() as group:
        for number in range(JOBS):
            job = f"job-{number}"
            history.record("enqueue", id=job)
            delay_s = rng.random() if rng.random() < 0.33 else None
            await emitter.emit_many([NewMessage(rng.choice(("async", "thread")), {}, id=job, delay_s=delay_s)])
            group.create_task(cancel(job, (delay_s or 0) + 0.06 * rng.random()))
            await asyncio.sleep(0.004)
    await own.aclose()
    return answers


async def _is_quiet(client: redis.asyncio.Redis, keys: Keys) -> bool:
    jobs = JobAdmin(client, keys.stream)
    pages = [await jobs.list(phase, limit=1) for phase in ("waiting", "running", "delayed", "retrying")]
    assert await client.xlen(keys.dead) == 0
    return not any(page.jobs for page in pages) and await client.hlen(keys.cancel) == 0


async def _states(client: redis.asyncio.Redis, keys: Keys, answers: dict[str, JobChange]) -> dict[str, str]:
    states: dict[str, str] = {}
    for job in answers:
        state: Any = await client.hget(keys.cancelled(job), "state")
        if state is not None:
            states[job] = state.decode()
    return states


def _facts(redis_url: str, database: str) -> list[dict[str, Any]]:
    engine = create_engine(database)
    with redis.Redis.from_url(redis_url) as client:
        found = [redis_facts(client), database_facts(engine)]
    engine.dispose()
    return found


def _effects(database: str) -> Counter[str]:
    engine = create_engine(database)
    with engine.connect() as connection:
        found = Counter(connection.execute(text("SELECT job FROM effect")).scalars().all())
    engine.dispose()
    return found
