"""Seed 004's decision table on a real broker: the content of the queues afterwards."""

import asyncio
import logging
import socket
from functools import partial
from typing import Any

import pytest
from tests.integration.rabbit.conftest import MakeAction, Rabbit, Recorder

from conquiet.errors import ConquietError, QueueMissingError, RabbitConnectionError
from conquiet.rabbit import RabbitConsumer, current_delivery
from conquiet.rabbit.settings import seed_defaults
from conquiet.testing import wait_until_async

SeedConsumer = partial(RabbitConsumer, **seed_defaults())

pytestmark = pytest.mark.usefixtures("rabbitmq_server")


@pytest.mark.spec("MW-001.1", "MW-004.1", "MW-004.3", "MW-008.2", "MW-003.2")
@pytest.mark.parametrize("quorum", [False, True])
async def test_true_removes_the_message(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction, *, quorum: bool
) -> None:
    queue = rabbit.queue(quorum=quorum)
    rabbit.put(queue, action(1), action(2))
    syncer = recorder()

    async with SeedConsumer(rabbit.url, queue, syncer) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 2)

    assert [message["actionId"] for message in syncer.seen] == [1, 2]
    assert syncer.seen[0]["campaign"] == {"name": "c", "id": 10}
    assert rabbit.take(queue) == rabbit.take("dead") == []
    assert (consumer.count.ack, consumer.count.nack) == (2, 0)


@pytest.mark.spec("MW-004.4", "MW-005.2", "MW-005.3", "MW-005.4", "MW-008.3", "MW-001.5")
@pytest.mark.parametrize("quorum", [False, True])
async def test_false_requeues_once_and_then_dead_letters(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction, *, quorum: bool
) -> None:
    queue = rabbit.queue(quorum=quorum)
    rabbit.put(queue, action(1))
    syncer = recorder(False, False)  # noqa: FBT003

    async with SeedConsumer(rabbit.url, queue, syncer) as consumer:
        await wait_until_async(lambda: consumer.count.nack == 2)

    assert len(syncer.seen) == 2
    [(headers, _)] = rabbit.take("dead")
    assert headers["x-death"][0]["reason"] == "rejected"
    assert rabbit.take(queue) == []
    assert (consumer.count.requeued, consumer.count.dead_lettered, consumer.count.ack) == (1, 1, 0)


@pytest.mark.spec("MW-004.4", "MW-005.2")
async def test_a_second_attempt_may_succeed(rabbit: Rabbit, recorder: type[Recorder], action: MakeAction) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, action(1))

    async with SeedConsumer(rabbit.url, queue, recorder(False, True)) as consumer:  # noqa: FBT003
        await wait_until_async(lambda: consumer.count.ack == 1)

    assert (consumer.count.requeued, consumer.count.dead_lettered) == (1, 0)
    assert rabbit.take(queue) == rabbit.take("dead") == []


@pytest.mark.spec("MW-002.5", "MW-002.6", "MW-002.7", "MW-002.8")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[1]",
        b"\xff",
        b'{"schema": "proca:action:1"}',
        b"{}",
        b'{"schema": "proca:action:2", "org": 1}',
    ],
)
async def test_an_unreadable_message_is_requeued_once_and_then_dead_lettered(
    rabbit: Rabbit, recorder: type[Recorder], body: bytes
) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, body)
    syncer = recorder()

    async with SeedConsumer(rabbit.url, queue, syncer) as consumer:
        await wait_until_async(lambda: consumer.count.nack == 2)

    assert syncer.seen == []
    assert [dead for _, dead in rabbit.take("dead")] == [body]
    assert (consumer.count.requeued, consumer.count.dead_lettered) == (1, 1)


@pytest.mark.spec("MW-002.2", "MW-002.3", "MW-002.4", "MW-002.1")
@pytest.mark.parametrize(
    ("deaths", "max_retries", "dropped"),
    [(3, 3, False), (4, 3, True), (4, None, False), (0, 1, False), (2, 1, True)],
)
async def test_past_the_limit_a_message_is_dropped_unseen(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction, deaths: int, max_retries: int | None, *, dropped: bool
) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, action(1), headers={"x-death": [{"count": deaths, "queue": "q", "reason": "rejected"}]})
    syncer = recorder()

    async with SeedConsumer(rabbit.url, queue, syncer, max_retries=max_retries) as consumer:
        await wait_until_async(lambda: consumer.count.dropped + consumer.count.ack == 1)

    assert len(syncer.seen) == (0 if dropped else 1)
    assert (consumer.count.dropped, consumer.count.ack) == ((1, 0) if dropped else (0, 1))
    assert rabbit.take(queue) == rabbit.take("dead") == []


async def test_exhausted_messages_can_be_parked_instead(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction
) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, action(1), headers={"x-death": [{"count": 9}]})
    syncer = recorder()

    async with SeedConsumer(rabbit.url, queue, syncer, max_retries=1, exhausted="dead_letter") as consumer:
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    assert syncer.seen == []
    assert len(rabbit.take("dead")) == 1


@pytest.mark.spec("MW-005.1", "MW-002.3", "MW-005.4")
async def test_a_retry_circuit_ends_after_max_retries(rabbit: Rabbit, action: MakeAction) -> None:
    """Work → rejected → waiting queue with a TTL → work: each round resets the redelivered flag and counts a death."""
    rabbit.queue("waiting", dead="work", x_message_ttl=50)
    queue = rabbit.queue("work", dead="waiting")
    rabbit.put(queue, action(1))
    seen = 0

    async def refuse(_: dict[str, Any]) -> bool:
        nonlocal seen
        seen += 1
        return False

    async with SeedConsumer(rabbit.url, queue, refuse, max_retries=2) as consumer:
        await wait_until_async(lambda: consumer.count.dropped == 1)

    assert seen == 2 * (2 + 1)  # two attempts a round: the first delivery and the requeued one
    assert (consumer.count.requeued, consumer.count.dead_lettered) == (3, 3)
    assert rabbit.take("work") == rabbit.take("waiting") == []


async def test_a_quorum_queue_counts_deliveries_for_the_second_policy(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction
) -> None:
    queue = rabbit.queue(quorum=True)
    rabbit.put(queue, action(1))
    syncer = recorder(*[False] * 9)

    options: dict[str, Any] = {"settle": "delivery_count", "max_requeues": 3}
    async with SeedConsumer(rabbit.url, queue, syncer, **options) as consumer:
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    assert consumer.count.requeued == 3
    assert len(syncer.seen) == 4
    assert len(rabbit.take("dead")) == 1


async def test_a_count_written_by_a_publisher_causes_no_endless_requeue(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction
) -> None:
    """A classic queue does not count, and passes the header on unchanged."""
    queue = rabbit.queue()
    rabbit.put(queue, action(1), headers={"x-delivery-count": 0})
    syncer = recorder(*[False] * 9)

    options: dict[str, Any] = {"settle": "delivery_count", "max_requeues": 3}
    async with SeedConsumer(rabbit.url, queue, syncer, **options) as consumer:
        await wait_until_async(lambda: consumer.count.nack >= 2)
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    assert consumer.count.requeued == 1
    assert len(rabbit.take("dead")) == 1


async def test_a_syncer_that_changes_headers_does_not_change_the_disposition(
    rabbit: Rabbit, action: MakeAction
) -> None:
    queue = rabbit.queue(quorum=True)
    rabbit.put(queue, action(1), headers={"tenant": "a"})
    attempts = 0

    async def clears(_: dict[str, Any]) -> bool:
        nonlocal attempts
        attempts += 1
        current_delivery().headers.clear()
        return False

    options: dict[str, Any] = {"settle": "delivery_count", "max_requeues": 3}
    async with SeedConsumer(rabbit.url, queue, clears, **options) as consumer:
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    assert (attempts, consumer.count.requeued) == (4, 3)


@pytest.mark.spec("MW-001.4", "MW-001.6", "MW-001.7", "MW-001.8")
@pytest.mark.parametrize(
    ("options", "set_later", "prefetch", "name"),
    [
        ({}, None, 2, "conquiet"),
        ({"concurrency": 7, "tag": "crm"}, None, 14, "crm"),
        ({"prefetch": 5}, None, 5, "conquiet"),
        ({}, 7, 14, "conquiet"),  # as conquiet worker --concurrency does
        ({"prefetch": 5}, 7, 5, "conquiet"),
    ],
)
async def test_the_broker_itself_confirms_prefetch_tag_and_manual_acknowledgement(
    rabbit: Rabbit, recorder: type[Recorder], options: dict[str, Any], set_later: int | None, prefetch: int, name: str
) -> None:
    queue = rabbit.queue()
    made = SeedConsumer(rabbit.url, queue, recorder(), **options)
    if set_later is not None:
        made.set_concurrency(set_later)

    async with made:
        [consumer] = await asyncio.to_thread(rabbit.wait_for_consumers, 1)

    assert consumer["prefetch_count"] == prefetch
    assert consumer["consumer_tag"] == f"{socket.gethostname()}.{name}"
    assert consumer["ack_required"] is True
    assert consumer["exclusive"] is False


@pytest.mark.spec("MW-001.6")
@pytest.mark.parametrize("set_later", [False, True], ids=["option", "set_concurrency"])
@pytest.mark.parametrize("plain", [False, True])
async def test_no_more_than_concurrency_messages_are_handled_at_once(
    rabbit: Rabbit, action: MakeAction, *, plain: bool, set_later: bool
) -> None:
    import threading

    queue = rabbit.queue()
    rabbit.put(queue, *[action(number) for number in range(12)])
    lock = threading.Lock()
    running = peak = 0
    go_on = threading.Event()

    def enter() -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)

    def leave() -> None:
        nonlocal running
        with lock:
            running -= 1

    def in_a_thread(_: dict[str, Any]) -> bool:
        enter()
        go_on.wait(180)
        leave()
        return True

    async def on_the_loop(_: dict[str, Any]) -> bool:
        enter()
        await wait_until_async(go_on.is_set)
        leave()
        return True

    syncer: Any = in_a_thread if plain else on_the_loop
    consumer = SeedConsumer(rabbit.url, queue, syncer, concurrency=1 if set_later else 3)
    if set_later:
        consumer.set_concurrency(3)
    async with consumer:
        session = consumer._session
        assert session is not None
        await wait_until_async(lambda: running >= 3 and session._window.open_count >= 6)
        await asyncio.sleep(0.1)  # a fourth, if there were one, would begin now
        go_on.set()
        await wait_until_async(lambda: consumer.count.ack == 12)

    assert peak == 3


@pytest.mark.spec("MW-001.11", "MW-008.1")
@pytest.mark.parametrize("depth", [0, 5])
async def test_the_depth_at_the_start_is_logged_and_kept(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction, caplog: pytest.LogCaptureFixture, depth: int
) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, *[action(number) for number in range(depth)])
    caplog.set_level(logging.INFO, "conquiet.rabbit")

    async with SeedConsumer(rabbit.url, queue, recorder()) as consumer:
        await wait_until_async(lambda: consumer.count.ack == depth)
        rabbit.put(queue, action(6))
        await wait_until_async(lambda: consumer.count.ack == depth + 1)

    assert consumer.count.queued == depth
    [record] = [record for record in caplog.records if record.getMessage().startswith("messages in the queue")]
    assert vars(record)["queued"] == depth


@pytest.mark.spec("MW-001.10")
async def test_a_missing_queue_fails_the_start_and_is_not_created(rabbit: Rabbit, recorder: type[Recorder]) -> None:
    with pytest.raises(QueueMissingError, match="nowhere does not exist"):
        await SeedConsumer(rabbit.url, "nowhere", recorder()).run()

    assert [queue["name"] for queue in rabbit.api("GET", "/api/queues/{vhost}")] == []


@pytest.mark.parametrize("where", ["amqp://guest:guest@127.0.0.1:{closed}/%2F", "wrong password", "wrong vhost"])
async def test_a_refused_login_fails_the_start_at_once(
    rabbit: Rabbit, recorder: type[Recorder], closed_port: int, where: str
) -> None:
    url = where.format(closed=closed_port)
    if where == "wrong password":
        url = rabbit.url.replace("guest:guest", "guest:s3cret")
    elif where == "wrong vhost":
        url = rabbit.url + "-not-there"

    with pytest.raises(RabbitConnectionError) as caught:
        await SeedConsumer(url, "work", recorder(), connect_timeout_s=5.0).run()

    error: BaseException | None = caught.value
    assert isinstance(error, ConquietError)
    assert "s3cret" not in str(error) + repr(error)


async def test_callbacks_are_called_when_the_connection_changes(rabbit: Rabbit, recorder: type[Recorder]) -> None:
    queue = rabbit.queue()
    consumer = SeedConsumer(rabbit.url, queue, recorder())
    events: list[str] = []
    ended = events.append
    consumer.on("connected", lambda event: event.no_such_fact)  # type: ignore[attr-defined]
    consumer.on("connected", lambda event: events.append(event.kind.value))
    consumer.on("connected", ended)  # type: ignore[arg-type]
    consumer.off("connected", ended)  # type: ignore[arg-type]

    async with consumer:
        pass

    assert events == ["connected"]
