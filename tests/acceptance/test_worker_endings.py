"""Every kind of thing that ``conquiet worker`` runs, asked to end before it has begun."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from sqlalchemy import create_engine

from conquiet.bridge import OutboxRelay, create_tables
from conquiet.cli.worker.child import Child
from conquiet.cli.worker.pulse import Pulse
from conquiet.cli.worker.runnables import Runnable, adapt
from conquiet.errors import LifecycleError
from conquiet.processor import Processor
from conquiet.rabbit import RabbitConsumer
from conquiet.runtime import Consumer
from conquiet.scheduler import Every, ScheduleEntry, Scheduler

KINDS = ["Consumer", "Processor", "Scheduler", "RabbitConsumer", "OutboxRelay"]


async def handle(_message: Any, _ctx: Any) -> None: ...


class Nowhere:
    """A target of a relay that has nothing to publish."""

    def publish(self, letters: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def build(request: pytest.FixtureRequest, key_prefix: str, tmp_path: Path) -> Callable[[str], object]:
    """One of the kinds, on servers of its own kind only."""
    stream = f"{key_prefix}orders"

    def redis() -> Redis:
        return Redis.from_url(request.getfixturevalue("redis_url"))

    def rabbit() -> RabbitConsumer:
        url = request.getfixturevalue("amqp_url")
        request.getfixturevalue("declare")("orders")
        return RabbitConsumer(url, "orders", lambda _message: True)

    def relay() -> OutboxRelay:
        engine = create_engine(f"sqlite:///{tmp_path / 'shop.sqlite'}")
        request.addfinalizer(engine.dispose)
        create_tables(engine)
        return OutboxRelay(engine, {"orders": Nowhere()})

    makers: dict[str, Callable[[], object]] = {
        "Consumer": lambda: Consumer(streams=[stream], redis=redis(), handler=handle, block_ms=100),
        "Processor": lambda: Processor(redis(), [stream]),
        "Scheduler": lambda: Scheduler(
            redis(), [ScheduleEntry("report", Every(60), event="report.make", stream=stream)], group=stream
        ),
        "RabbitConsumer": rabbit,
        "OutboxRelay": relay,
    }
    return lambda kind: makers[kind]()


@pytest.fixture
def face(request: pytest.FixtureRequest, build: Callable[[str], object]) -> Runnable:
    adapted = adapt(build(request.param))
    assert adapted is not None
    assert (adapted.name, adapted.ready()) == (request.param, False)
    return adapted


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    pulse = Pulse.create(tmp_path / "pulse", 1)
    yield Child(pulse, 0)
    pulse.close()


@pytest.mark.parametrize("face", KINDS, indirect=True)
async def test_a_stop_between_the_last_look_and_the_start_is_a_good_end(face: Runnable, child: Child) -> None:
    """A signal may come at any moment; a worker that then refuses to start has done what it was asked."""

    class Signalled:
        name = face.name

        async def run(self) -> None:
            child.stop()
            await face.run()

        def stop(self) -> None:
            face.stop()

        def ready(self) -> bool:
            return face.ready()

    await child.run([Signalled()])


async def test_what_is_not_begun_when_the_stop_comes_is_not_begun_at_all(child: Child) -> None:
    begun: list[bool] = []

    class Never:
        name = "Never"

        async def run(self) -> None:
            begun.append(True)

        def stop(self) -> None: ...

        def ready(self) -> bool:
            return False

    child.stop()
    await child.run([Never()])

    assert begun == []


async def test_what_refuses_to_start_although_nobody_asked_it_to_stop_is_a_failure(child: Child) -> None:
    class Twice:
        name = "Twice"

        async def run(self) -> None:
            raise LifecycleError("it was started before")

        def stop(self) -> None: ...

        def ready(self) -> bool:
            return False

    with pytest.raises(LifecycleError):
        await child.run([Twice()])
