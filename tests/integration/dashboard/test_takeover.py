"""A dashboard that is killed in the middle of a bulk run leaves nothing half done."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import redis.asyncio
from tests.integration.dashboard.conftest import AddDead, OpenClient
from tests.redis_clients import RawRedis

from conquiet.management.bulk_runs import BulkRuns, RunAction, RunState
from conquiet.processor.dead_letters import DeadFilter
from conquiet.testing import wait_until_async

MESSAGES = 400


@pytest.fixture
def start_dashboard(redis_url: str) -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    """``start_dashboard()``: ``conquiet dashboard`` as a separate process. It takes over runs when it starts."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "conquiet.cli", "dashboard", "--redis-url", redis_url, "--port", "0"]
        started.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


async def test_a_killed_dashboard_leaves_nothing_half_done_and_another_continues(
    open_client: OpenClient,
    start_dashboard: Callable[[], "subprocess.Popen[bytes]"],
    add_dead: AddDead,
    raw: RawRedis,
    redis_url: str,
) -> None:
    add_dead("orders", MESSAGES)
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as own:
        runs = BulkRuns(own, "the test")
        run = await runs.create(
            action=RunAction.REPLAY, stream="orders", where=DeadFilter(), user="ann", rate_per_s=100.0
        )
        await runs.execute(run.id)  # counts
        await runs.confirm(run.id)

        first = start_dashboard()
        await wait_until_async(lambda: raw.xlen("orders") > 20)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        begun = raw.xlen("orders")
        assert begun + raw.xlen("{orders}:dead") == MESSAGES, "in the stream or dead, never both or neither"
        assert begun < MESSAGES, "it was killed in the middle"
        raw.delete(f"conquiet:run:{run.id}:lease")  # its lease ends now, and not in 10 s

        client = open_client()
        await client.get("/runs")

        async def is_done() -> bool:
            found = await runs.get(run.id)
            return found is not None and found.state is RunState.DONE

        await wait_until_async(is_done)
    ids = [json.loads(fields[b"data"])["id"] for _, fields in raw.xrange("orders")]
    assert sorted(ids) == sorted(f"paid-{number}" for number in range(MESSAGES))
    assert raw.xlen("{orders}:dead") == 0
