"""Everything that ``conquiet worker`` can run, with a stop request before it has begun."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from sqlalchemy import create_engine

from conquiet.cli.worker.child import Child
from conquiet.cli.worker.heartbeat_file import HeartbeatFile
from conquiet.cli.worker.worker_loader import find_workers
from conquiet.core.functions import is_coroutine_function
from conquiet.core.lifecycle import Health, Status, Worker
from conquiet.errors import LifecycleError
from conquiet.processor import Processor
from conquiet.rabbit import RabbitConsumer
from conquiet.runtime import Consumer
from conquiet.scheduler import Every, ScheduleEntry, Scheduler
from conquiet.transactional import OutboxRelay, create_tables

RABBIT = pytest.param("RabbitConsumer", marks=pytest.mark.xdist_group("rabbitmq"))
KINDS = ["Consumer", "Processor", "Scheduler", RABBIT, "OutboxRelay"]


async def handle(_message: Any, _ctx: Any) -> None: ...


class Nowhere:
    """A target of a relay that has nothing to publish."""

    def publish(self, messages: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def build(request: pytest.FixtureRequest, key_prefix: str, tmp_path: Path) -> Callable[[str], object]:
    """One of the kinds, on the servers that it needs."""
    stream = f"{key_prefix}orders"

    def redis() -> Redis:
        return Redis.from_url(request.getfixturevalue("redis_url"))

    def rabbit() -> RabbitConsumer:
        url = request.getfixturevalue("amqp_url")
        request.getfixturevalue("declare")("orders")
        return RabbitConsumer(url, "orders", lambda _message: True)

    def processor() -> Processor:
        made = Processor(redis(), [stream])
        made.handler("pay")(lambda _ctx: None)
        return made

    def relay() -> OutboxRelay:
        engine = create_engine(f"sqlite:///{tmp_path / 'shop.sqlite'}")
        request.addfinalizer(engine.dispose)
        create_tables(engine)
        return OutboxRelay(engine, {"orders": Nowhere()})

    makers: dict[str, Callable[[], object]] = {
        "Consumer": lambda: Consumer(streams=[stream], redis=redis(), handler=handle, block_ms=100),
        "Processor": processor,
        "Scheduler": lambda: Scheduler(
            redis(), [ScheduleEntry("report", Every(60), event="report.make", stream=stream)], group=stream
        ),
        "RabbitConsumer": rabbit,
        "OutboxRelay": relay,
    }
    return lambda kind: makers[kind]()


@pytest.fixture
def worker(request: pytest.FixtureRequest, build: Callable[[str], object]) -> Worker:
    [found] = find_workers(build(request.param))
    assert not found.health().ready
    return found


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    heartbeats = HeartbeatFile.create(tmp_path, 1)
    yield Child(heartbeats, 0)
    heartbeats.close()


class Idle:
    """A worker that does nothing."""

    name = "Idle"
    abandoned = 0

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        self._run = run

    async def run(self) -> None:
        await self._run()

    def stop(self) -> None: ...

    def health(self) -> Health:
        return Health(status=Status.RUNNING, reason="idle")

    def close(self) -> None: ...


@pytest.mark.parametrize("worker", KINDS, indirect=True)
async def test_a_stop_between_the_last_check_and_the_start_is_graceful(worker: Worker, child: Child) -> None:
    """A signal may arrive at any moment; a worker that then refuses to start has done its duty."""

    class Signalled(Idle):
        def stop(self) -> None:
            worker.stop()

        def close(self) -> Any:
            return worker.close()

    async def run() -> None:
        child.stop()
        await (worker.run() if is_coroutine_function(worker.run) else asyncio.to_thread(worker.run))

    await child.run([Signalled(run)])


@pytest.mark.spec("CQ-001.13")
async def test_a_worker_is_not_started_after_a_stop(child: Child) -> None:
    started: list[bool] = []

    async def run() -> None:
        started.append(True)

    child.stop()
    await child.run([Idle(run)])

    assert started == []


async def test_a_worker_that_refuses_to_start_without_a_stop_is_a_failure(child: Child) -> None:
    async def run() -> None:
        raise LifecycleError("it was started before")

    with pytest.raises(LifecycleError):
        await child.run([Idle(run)])


async def test_a_second_reason_to_stop_does_not_force_the_workers(child: Child) -> None:
    stopped: list[bool] = []

    class Counting(Idle):
        def stop(self) -> None:
            stopped.append(True)

    async def run() -> None:
        child.stop()
        child.stop()

    await child.run([Counting(run)])

    assert stopped == [True]


@pytest.mark.spec("CQ-001.15")
async def test_a_worker_is_closed_after_its_run(child: Child) -> None:
    closed: list[str] = []

    class Asynchronous(Idle):
        async def close(self) -> None:  # type: ignore[override]
            closed.append("async")

    class Blocking:
        name = "Blocking"
        abandoned = 0

        def run(self) -> None:
            closed.append(threading.current_thread().name)

        def stop(self) -> None: ...

        def health(self) -> Health:
            return Health(status=Status.RUNNING)

        def close(self) -> None:
            closed.append("sync")

    async def run() -> None: ...

    await child.run([Asynchronous(run), Blocking()])

    assert {"async", "sync"} < set(closed)
    assert threading.current_thread().name not in closed
