"""An engine removes nothing by default, and warns once while its stream only grows."""

import logging
import threading
from typing import Any

import pytest
from tests.integration.runtime.conftest import Enqueue, MakeEngine, Run
from tests.redis_clients import RawRedis

from conquiet.queue import Retention, housekeeping
from conquiet.runtime import MessageContext, RuntimeMessage
from conquiet.runtime.shard import Shard
from conquiet.testing import wait_until_async


async def done_engine(make_engine: MakeEngine, run: Run, enqueue: Enqueue, count: int, **options: Any) -> Any:
    """An engine that has handled ``count`` messages and continues."""
    seen: list[str] = []

    async def handler(message: RuntimeMessage, _ctx: MessageContext) -> None:
        seen.append(message.id)

    enqueue(count)
    running = run(make_engine(handler, concurrency=8, **options))
    await wait_until_async(lambda: len(seen) == count)
    return running


async def test_an_engine_with_a_retention_keeps_its_stream_short(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str
) -> None:
    running = await done_engine(make_engine, run, enqueue, 300, retention=Retention(interval_s=0.05))

    await wait_until_async(lambda: raw.xlen(stream) == 1)
    await running.stop()

    assert raw.keys("*") == [stream.encode()]  # no lease, no registered name


async def test_housekeeping_begins_once_the_group_exists(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, it would trim entries that all other groups have handled and this one has not read."""
    opening = Shard.open
    housekeepers: list[str] = []

    async def record_threads(shard: Shard) -> None:
        housekeepers.extend(thread.name for thread in threading.enumerate() if "housekeeper" in thread.name)
        await opening(shard)
        housekeepers.append("the group exists")

    monkeypatch.setattr(Shard, "open", record_threads)
    running = await done_engine(make_engine, run, enqueue, 3, retention=Retention(interval_s=0.05))
    await running.stop()

    assert housekeepers == ["the group exists"]


async def test_an_engine_without_one_warns_once_of_a_growing_stream(
    make_engine: MakeEngine,
    run: Run,
    enqueue: Enqueue,
    raw: RawRedis,
    stream: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(housekeeping, "_WATCH_S", 0.02)
    monkeypatch.setattr("conquiet.queue.retention.WARN_FROM", 100)
    with caplog.at_level(logging.WARNING):
        running = await done_engine(make_engine, run, enqueue, 200)

        def grows() -> bool:
            enqueue(10)
            return "stream only grows" in caplog.text

        await wait_until_async(grows, interval_s=0.1)
        await running.stop()

    assert caplog.text.count("stream only grows") == 1
    assert raw.xlen(stream) > 200
