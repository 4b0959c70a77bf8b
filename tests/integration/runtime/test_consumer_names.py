"""A consumer name belongs to one live engine at a time."""

import asyncio
import os
import subprocess
import sys

import pytest
from tests.integration.runtime.conftest import Enqueue, MakeEngine, Run
from tests.redis_clients import RawRedis

from conquiet.errors import QueueError
from conquiet.redis_transport.liveness import LIVENESS_TTL_MS, liveness_key, registry_key
from conquiet.runtime import MessageContext, RuntimeMessage
from conquiet.testing import wait_until_async


async def _nothing(message: RuntimeMessage, ctx: MessageContext) -> None:
    """Succeed."""


async def test_a_second_live_engine_of_one_name_is_refused_and_runs_nothing(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, stream: str
) -> None:
    runs: list[str] = []
    release = asyncio.Event()

    async def slow(message: RuntimeMessage, ctx: MessageContext) -> None:
        runs.append(message.id)
        await release.wait()

    first = run(make_engine(slow, consumer_id="consumer-web-1", concurrency=20))
    ids = enqueue(20)
    await wait_until_async(lambda: len(runs) == 20)

    with pytest.raises(QueueError, match="another live engine is consumer 'consumer-web-1'"):
        await make_engine(slow, consumer_id="consumer-web-1", concurrency=20).start()

    release.set()
    await first.stop()
    assert sorted(runs) == sorted(ids)


async def test_a_name_is_free_again_after_a_clean_stop(
    make_engine: MakeEngine, run: Run, raw: RawRedis, stream: str
) -> None:
    engine = make_engine(_nothing, consumer_id="me")
    running = run(engine)
    key = liveness_key(stream, "processor", "me")
    await wait_until_async(lambda: engine.health().ready)
    assert raw.exists(key)
    await running.stop()

    assert not raw.exists(key)


async def token_of_an_ended_process() -> str:
    program = "from conquiet.redis_transport.liveness import new_token; print(new_token())"
    child = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return str(child.stdout.strip())


async def test_a_starting_worker_ends_the_liveness_of_killed_ones_here(
    make_engine: MakeEngine, run: Run, raw: RawRedis, stream: str
) -> None:
    """So a dashboard on another machine shows a killed worker as dead when its successor starts, not 15 s later."""
    killed, elsewhere = (liveness_key(stream, "processor", name) for name in ("killed", "elsewhere"))
    raw.sadd(registry_key(stream, "processor"), "killed", "elsewhere")
    raw.set(killed, await token_of_an_ended_process(), px=3_600_000)
    raw.set(elsewhere, "another machine/1/x", px=3_600_000)

    running = run(make_engine(_nothing, consumer_id="me", report_activity=True))
    await wait_until_async(lambda: not raw.exists(killed))

    assert raw.exists(elsewhere)
    await running.stop()


async def test_the_name_of_a_dead_process_here_is_free_immediately(
    make_engine: MakeEngine, run: Run, raw: RawRedis, stream: str
) -> None:
    key = liveness_key(stream, "processor", "me")
    raw.set(key, await token_of_an_ended_process(), px=3_600_000)

    engine = make_engine(_nothing, consumer_id="me")
    running = run(engine)
    await wait_until_async(lambda: f"/{os.getpid()}/".encode() in (raw.get(key) or b""))
    await running.stop()


async def test_the_name_of_an_unknown_holder_is_free_when_its_key_expires(
    make_engine: MakeEngine, run: Run, raw: RawRedis, stream: str
) -> None:
    key = liveness_key(stream, "processor", "me")
    raw.set(key, "elsewhere/1/x", px=500)

    running = run(make_engine(_nothing, consumer_id="me"))
    await wait_until_async(lambda: f"/{os.getpid()}/".encode() in (raw.get(key) or b""))
    await running.stop()


async def test_an_engine_whose_name_was_taken_stops_with_an_error(
    make_engine: MakeEngine, run: Run, raw: RawRedis, stream: str
) -> None:
    key = liveness_key(stream, "processor", "me")
    engine = make_engine(_nothing, consumer_id="me", claim_idle_ms=300)
    started = asyncio.create_task(engine.start())
    await wait_until_async(lambda: raw.exists(key))

    raw.set(key, "elsewhere/1/x", px=LIVENESS_TTL_MS)

    with pytest.raises(QueueError, match="another live engine"):
        await asyncio.wait_for(started, 20)
