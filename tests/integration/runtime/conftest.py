"""Helpers of the engine's integration tests: a client that inspects the server, engines that are always ended."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from typing import Any, Protocol

import pytest
import redis
import redis.asyncio
from tests.redis_clients import RawRedis

from conquiet.core.lifecycle import Status
from conquiet.runtime import Consumer, EngineError, StopReport


class MakeEngine(Protocol):
    def __call__(self, handler: Any, **options: Any) -> Consumer: ...


class Enqueue(Protocol):
    def __call__(self, count: int = 1, *, to: str | None = None, **payload: Any) -> list[str]: ...


@pytest.fixture
def stream(key_prefix: str) -> str:
    return f"{key_prefix}orders"


@pytest.fixture
def raw(redis_url: str) -> Iterator[RawRedis]:
    """Yield a client that inspects the server, and acts as another program."""
    client = RawRedis.from_url(redis_url, protocol=2)
    yield client
    client.close()


@pytest.fixture
def enqueue(raw: RawRedis, stream: str) -> Enqueue:
    def add(count: int = 1, *, to: str | None = None, **payload: Any) -> list[str]:
        pipe = raw.pipeline(transaction=False)
        for number in range(count):
            pipe.xadd(to or stream, {"data": json.dumps({"n": number, **payload})})
        return [entry_id.decode() for entry_id in pipe.execute()]

    return add


@pytest.fixture
async def make_engine(redis_url: str, stream: str) -> AsyncIterator[MakeEngine]:
    """Builds engines. Engines that a test leaves running are stopped by force, so that one failure stays one."""
    engines: list[Consumer] = []
    client = redis.asyncio.Redis.from_url(redis_url)

    def make(handler: Any, **options: Any) -> Consumer:
        given = {"streams": [stream], "redis": client, "grace_s": 5.0, **options}
        engine = Consumer(handler=handler, **given)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        if engine.status in {Status.RUNNING, Status.STOPPING}:
            engine.stop()
            engine.stop()
            with contextlib.suppress(Exception):
                await asyncio.wait_for(engine.wait_for_active_tasks(), 60)
    await client.aclose()


class Running:
    """A running engine, and the errors that it reported."""

    def __init__(self, engine: Consumer) -> None:
        self.engine = engine
        self.errors: list[BaseException] = []
        engine.on("error", self._note)
        self.task: asyncio.Task[StopReport] = asyncio.create_task(engine.start())

    def _note(self, event: EngineError) -> None:
        self.errors.append(event.error)

    async def stop(self) -> StopReport:
        self.engine.stop()
        return await asyncio.wait_for(self.task, 60)


Run = Callable[[Consumer], Running]


@pytest.fixture
def run() -> Run:
    return Running


BeatQuickly = Callable[[Consumer], Consumer]


@pytest.fixture
def beat_quickly() -> BeatQuickly:
    """Give an engine the heartbeat of a short claim time, without making its messages claimable.

    With a claim time of milliseconds a busy machine is enough to turn a held message stale.
    """

    def hasten(engine: Consumer) -> Consumer:
        heartbeat = engine._heartbeat
        heartbeat._settings = dataclasses.replace(heartbeat._settings, claim_idle_ms=300)
        return engine

    return hasten


SeenToFall = Callable[[Callable[[], int]], Callable[[], bool]]


@pytest.fixture
def seen_to_fall() -> SeenToFall:
    """Return a predicate: was this idle time seen to fall three times? It rises with time; an extension resets it."""

    def watch(idle_ms: Callable[[], int]) -> Callable[[], bool]:
        seen: list[int] = []

        def fell() -> bool:
            seen.append(idle_ms())
            return sum(later < earlier for earlier, later in pairwise(seen)) >= 3

        return fell

    return watch


class Pending(Protocol):
    def __call__(self, group: str = "processor", of: str | None = None) -> list[dict[str, Any]]: ...


@pytest.fixture
def pending(raw: RawRedis, stream: str) -> Pending:
    def rows(group: str = "processor", of: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = raw.xpending_range(of or stream, group, "-", "+", 1_000)
        return found

    return rows
