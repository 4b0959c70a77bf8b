"""A syncer that raises InfrastructureError: consumption pauses, probes and resumes, and no attempt is counted."""

import asyncio
import logging
from typing import Any

import pytest
from tests.integration.rabbit.conftest import Rabbit

from conquiet.core.backoff import Backoff
from conquiet.errors import CommitUnknownError, DatabaseUnavailableError, InfrastructureError
from conquiet.rabbit import Postpone, RabbitConsumer, current_delivery
from conquiet.testing import wait_until_async

pytestmark = pytest.mark.usefixtures("rabbitmq_server")

QUICK = Backoff(base_s=0.1, cap_s=0.2, jitter=0.0)


class Database:
    """Away until it is brought back. Every call is noted."""

    def __init__(self, error: type[Exception] = DatabaseUnavailableError) -> None:
        self.away = True
        self.error = error
        self.calls: list[int] = []
        self.done: list[int] = []
        self.redelivered: list[bool] = []

    async def __call__(self, message: Any) -> bool:
        return self.run(message)

    def run(self, message: Any) -> bool:
        self.calls.append(message["number"])
        self.redelivered.append(current_delivery().redelivered)
        if self.away:
            raise self.error("away")
        self.done.append(message["number"])
        return True


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("error", [DatabaseUnavailableError, CommitUnknownError, InfrastructureError])
async def test_an_outage_costs_no_message_an_attempt(rabbit: Rabbit, error: type[Exception], kind: str) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, *({"number": number} for number in range(30)))
    database = Database(error)
    syncer: Any = database if kind == "async" else database.run

    async with RabbitConsumer(rabbit.url, queue, syncer, concurrency=4, outage=QUICK) as consumer:
        await wait_until_async(lambda: len(database.calls) >= 8)
        assert consumer.is_paused
        database.away = False
        await wait_until_async(lambda: consumer.count.ack == 30)
        await wait_until_async(lambda: not consumer.is_paused)

    assert sorted(database.done) == list(range(30))
    assert not any(database.redelivered)
    assert (consumer.count.nack, consumer.count.fatal) == (0, 0)
    assert rabbit.depth(queue) == rabbit.depth("dead") == 0


async def test_a_pause_is_logged_once_probed_singly_and_visible_in_health(
    rabbit: Rabbit, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    queue = rabbit.queue()
    rabbit.put(queue, *({"number": number} for number in range(20)))
    database = Database()
    consumer = RabbitConsumer(rabbit.url, queue, database, concurrency=5, outage=QUICK)
    assert (consumer.health().ready, consumer.health().reason) == (False, "not started")

    async with consumer:
        await wait_until_async(lambda: len(database.calls) >= 5 + 4)
        assert consumer.health().reason == "paused: a server that the syncer needs is unavailable"
        probes = database.calls[5:]
        database.away = False
        await wait_until_async(lambda: consumer.count.ack == 20)
        assert consumer.health().ready

    assert (consumer.health().ready, consumer.health().reason) == (False, "stopped")
    assert len(probes) >= 4
    said = [message for message in caplog.messages if message.startswith("consumption")]
    assert [" ".join(message.split(" ")[:2]).strip(":") for message in said] == [
        "consumption paused",
        "consumption resumed",
    ]


async def test_a_pause_grows_from_one_second_to_thirty() -> None:
    from conquiet.rabbit import RabbitSettings

    outage = RabbitSettings().outage

    assert [outage.delay_s(failures, rand=lambda: 0.0) for failures in (1, 2, 3, 6, 9)] == [1, 2, 4, 30, 30]


async def test_a_stop_during_a_pause_is_prompt_and_returns_everything(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, *({"number": number} for number in range(10)))
    database = Database()
    long = Backoff(base_s=600.0, cap_s=600.0)

    async with RabbitConsumer(rabbit.url, queue, database, concurrency=2, prefetch=20, outage=long) as consumer:
        await wait_until_async(lambda: consumer.is_paused)
        await wait_until_async(lambda: rabbit.depth(queue) == 0)  # the window is larger: the broker has sent them all
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 60

    rabbit.wait_for_depth(queue, 10)
    assert consumer.count.released == 10


async def test_a_connection_lost_during_a_pause_does_not_end_the_probes(rabbit: Rabbit, fast: dict[str, Any]) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, *({"number": number} for number in range(10)))
    database = Database()

    async with RabbitConsumer(rabbit.url, queue, database, concurrency=2, outage=QUICK, **fast) as consumer:
        await wait_until_async(lambda: consumer.is_paused)
        await wait_until_async(lambda: rabbit.close_connections_of("conquiet"))
        await wait_until_async(lambda: consumer.count.reconnects == 1)
        database.away = False
        await wait_until_async(lambda: consumer.count.ack == 10)

    assert rabbit.depth("dead") == 0


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_requeue_runs_the_message_again_and_lets_the_others_pass(rabbit: Rabbit, kind: str) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, *({"number": number} for number in range(6)))
    order: list[int] = []
    runs: list[bool] = []

    def run(message: dict[str, Any]) -> bool:
        if message["number"] == 0:
            runs.append(current_delivery().redelivered)
            if len(runs) < 4:
                raise Postpone
        order.append(message["number"])
        return True

    async def on_the_loop(message: dict[str, Any]) -> bool:
        return run(message)

    async with RabbitConsumer(rabbit.url, queue, on_the_loop if kind == "async" else run) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 6)

    assert order == [1, 2, 3, 4, 5, 0]
    assert runs == [False] * 4
    assert consumer.count.postponed == 3
    assert (consumer.count.nack, rabbit.depth("dead")) == (0, 0)


async def test_a_redelivered_message_is_not_dead_lettered_for_a_requeue(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, {"number": 1})
    runs: list[bool] = []

    async def syncer(_: dict[str, Any]) -> bool:
        runs.append(current_delivery().redelivered)
        if len(runs) == 1:
            return False
        if len(runs) < 4:
            raise Postpone
        return True

    async with RabbitConsumer(rabbit.url, queue, syncer) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 1)

    assert runs == [False, True, True, True]
    assert rabbit.depth("dead") == 0


async def test_a_delivery_names_its_queue(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, {"number": 1})
    names: list[str] = []

    async def syncer(_: dict[str, Any]) -> bool:
        names.append(current_delivery().queue)
        return True

    async with RabbitConsumer(rabbit.url, queue, syncer):
        await wait_until_async(lambda: names)

    assert names == [queue]
