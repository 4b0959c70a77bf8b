"""Rules about the syncer, checked for every kind: awaited, in a thread, both with batches, on both types of queue."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.rabbit.conftest import MakeAction, Rabbit
from tests.integration.rabbit.test_hostile_messages import Keys, sealed

from conquiet.errors import FatalSyncerError
from conquiet.rabbit import RabbitConsumer
from conquiet.rabbit.settings import seed_defaults
from conquiet.testing import wait_until_async

KINDS = ("async", "plain", "async batch", "plain batch")
Answer = Callable[[Any], Any]


def consumer_of(kind: str, rabbit: Rabbit, queue: str, answer: Answer, **options: Any) -> RabbitConsumer:
    """Return a consumer of the seed with a syncer that returns ``answer(message)``.

    Of a batch it is ``answer(first message)``. ``answer`` returns the syncer's result, or raises.
    """

    def first(given: Any) -> Any:
        answers = [answer(message) for message in (given if isinstance(given, list) else [given])]
        return answers[0]

    async def awaited(given: Any) -> Any:
        return first(given)

    def plain(given: Any) -> Any:
        return first(given)

    alone = options.pop("alone", False)
    if "batch" in kind:
        options = {"batch": 1 if alone else 5, "within_s": 0.05, **options}
    return RabbitConsumer(
        rabbit.url, queue, awaited if kind.startswith("async") else plain, **{**seed_defaults(), **options}
    )


@pytest.mark.spec("MW-004.1", "MW-004.3", "MW-008.2", "MW-003.2", "MW-002.5", "MW-002.7")
@pytest.mark.parametrize("kind", KINDS)
async def test_true_removes_the_message_whatever_the_syncer_is(rabbit: Rabbit, action: MakeAction, kind: str) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, *[action(number) for number in range(6)])
    seen: list[Any] = []

    def answer(message: dict[str, Any]) -> bool:
        seen.append(message)
        return True

    async with consumer_of(kind, rabbit, queue, answer) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 6)

    assert sorted(message["actionId"] for message in seen) == list(range(6))
    assert {message["campaign"]["id"] for message in seen} == {10}
    assert rabbit.take(queue) == rabbit.take("dead") == []
    assert (consumer.count.ack, consumer.count.nack, consumer.count.dropped) == (6, 0, 0)


@pytest.mark.spec("MW-004.4", "MW-005.2", "MW-005.3", "MW-005.4", "MW-008.3", "MW-001.5")
@pytest.mark.parametrize("quorum", [False, True], ids=["classic", "quorum"])
@pytest.mark.parametrize("kind", KINDS)
async def test_false_requeues_once_and_then_dead_letters_whatever_the_syncer_is(
    rabbit: Rabbit, action: MakeAction, kind: str, *, quorum: bool
) -> None:
    queue = rabbit.queue(quorum=quorum)
    rabbit.put(queue, action(1))
    seen: list[Any] = []

    def answer(message: dict[str, Any]) -> bool:
        seen.append(message)
        return False

    async with consumer_of(kind, rabbit, queue, answer) as consumer:
        await wait_until_async(lambda: consumer.count.nack == 2)

    assert len(seen) == 2
    [(headers, _)] = rabbit.take("dead")
    assert headers["x-death"][0]["reason"] == "rejected"
    assert rabbit.take(queue) == []
    assert (consumer.count.requeued, consumer.count.dead_lettered, consumer.count.ack) == (1, 1, 0)


@pytest.mark.spec("MW-002.6", "MW-002.8", "MW-002.1", "MW-002.3", "MW-002.4")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_that_cannot_be_prepared_never_reaches_the_syncer(
    rabbit: Rabbit, action: MakeAction, kind: str
) -> None:
    """No JSON, an unknown schema, and past the retry limit: with a good message among them."""
    queue = rabbit.queue()
    rabbit.put(queue, b"not json", {"schema": "proca:action:1"})
    rabbit.put(queue, action(4), headers={"x-death": [{"count": 4, "queue": "q", "reason": "rejected"}]})
    rabbit.put(queue, action(3), headers={"x-death": [{"count": 3, "queue": "q", "reason": "rejected"}]})
    seen: list[int] = []

    def answer(message: dict[str, Any]) -> bool:
        seen.append(message["actionId"])
        return True

    async with consumer_of(kind, rabbit, queue, answer, max_retries=3) as consumer:
        count = consumer.count
        await wait_until_async(lambda: count.ack + count.dead_lettered + count.dropped == 4)

    assert seen == [3]
    assert (count.ack, count.requeued, count.dead_lettered, count.dropped) == (1, 2, 2, 1)
    assert sorted(body for _, body in rabbit.take("dead")) == [b"not json", b'{"schema": "proca:action:1"}']
    assert rabbit.take(queue) == []


@pytest.mark.spec("MW-004.5", "MW-004.6", "MW-006.1", "MW-006.2", "MW-006.3", "MW-007.1", "MW-007.2")
@pytest.mark.parametrize("ending", [ValueError("jane@example.org"), SystemExit(3), None, 1, "true"], ids=repr)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_broken_contract_ends_every_kind_and_settles_nothing(
    rabbit: Rabbit, action: MakeAction, caplog: pytest.LogCaptureFixture, kind: str, ending: Any
) -> None:
    caplog.set_level(logging.INFO, "conquiet.rabbit")
    queue = rabbit.queue()
    rabbit.put(queue, *[action(number) for number in range(3)])
    calls: list[int] = []

    def answer(message: dict[str, Any]) -> Any:
        calls.append(message["actionId"])
        if isinstance(ending, BaseException):
            raise ending
        return ending

    consumer = consumer_of(kind, rabbit, queue, answer, alone=True)
    with pytest.raises(FatalSyncerError) as caught:
        async with asyncio.timeout(60):
            await consumer.run()

    assert calls == [0]
    assert rabbit.depth(queue) == 3
    assert rabbit.take("dead") == []
    assert (consumer.count.ack, consumer.count.nack, consumer.count.fatal) == (0, 0, 1)
    said = [record.getMessage() for record in caplog.records]
    steps = ("fatal error, the consumer stops", "consumer closed", "connection closed", "worker stopped")
    order = [next(at for at, line in enumerate(said) if line.startswith(step)) for step in steps]
    assert order == sorted(order)
    assert "jane" not in f"{caught.value} {said}"


@pytest.mark.spec("MW-003.3", "MW-003.4", "MW-003.5")
@pytest.mark.parametrize("kind", KINDS)
async def test_personal_fields_are_decrypted_for_every_kind(rabbit: Rabbit, action: MakeAction, kind: str) -> None:
    queue = rabbit.queue()
    contact = {"email": "old", "area": "PL"}
    rabbit.put(queue, action(1, contact=contact, personalInfo=sealed(b'{"email": "new"}')))
    rabbit.put(queue, action(2, contact=contact, personalInfo=sealed(b"{}") | {"payload": "AAAA"}))
    got: list[Any] = []

    def answer(message: dict[str, Any]) -> bool:
        got.append(message["contact"])
        return True

    async with consumer_of(kind, rabbit, queue, answer, key_store=Keys()) as consumer:
        await wait_until_async(lambda: (consumer.count.ack, consumer.count.dead_lettered) == (1, 1))

    assert got == [{"email": "new", "area": "PL"}]
    assert len(rabbit.take("dead")) == 1


@pytest.mark.spec("MW-001.4", "MW-001.6", "MW-001.7", "MW-001.8")
@pytest.mark.parametrize("kind", ["async batch", "plain batch"])
async def test_no_more_than_concurrency_batches_are_handled_at_once(
    rabbit: Rabbit, action: MakeAction, kind: str
) -> None:
    """The first two wait until the broker has sent all it may; a third at the same time would be seen."""
    queue = rabbit.queue()
    rabbit.put(queue, *[action(number) for number in range(12)])
    lock, go_on = threading.Lock(), threading.Event()
    running = peak = 0

    def move(step: int) -> None:
        nonlocal running, peak
        with lock:
            running += step
            peak = max(peak, running)

    async def awaited(_: dict[str, Any]) -> bool:
        move(1)
        await wait_until_async(go_on.is_set)
        move(-1)
        return True

    def plain(_: dict[str, Any]) -> bool:
        move(1)
        assert go_on.wait(180)
        move(-1)
        return True

    syncer = awaited if kind.startswith("async") else plain
    options: Any = {"batch": 1, "concurrency": 2, **seed_defaults()}
    async with RabbitConsumer(rabbit.url, queue, syncer, **options) as consumer:
        session = consumer._session
        assert session is not None
        await wait_until_async(lambda: running >= 2 and session._window.open_count >= 4)
        await asyncio.sleep(0.1)  # a third, if there were one, would begin now
        go_on.set()
        await wait_until_async(lambda: consumer.count.ack == 12)
        [at_the_broker] = await asyncio.to_thread(rabbit.wait_for_consumers, 1)

    assert peak == 2
    assert at_the_broker["prefetch_count"] == 4
    assert at_the_broker["consumer_tag"] == consumer.consumer_tag
    assert at_the_broker["ack_required"] is True


@pytest.mark.spec("MW-007.1", "MW-007.2", "MW-007.4")
@pytest.mark.parametrize("kind", ["async batch", "plain batch"])
async def test_a_stop_lets_a_running_batch_finish_and_releases_the_rest(
    rabbit: Rabbit, action: MakeAction, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.INFO, "conquiet.rabbit")
    queue = rabbit.queue()
    rabbit.put(queue, *[action(number) for number in range(6)])
    started, go_on = threading.Event(), threading.Event()

    async def awaited(_: dict[str, Any]) -> bool:
        started.set()
        return bool(await wait_until_async(go_on.is_set))

    def plain(_: dict[str, Any]) -> bool:
        started.set()
        return go_on.wait(60)

    syncer = awaited if kind.startswith("async") else plain
    consumer = RabbitConsumer(rabbit.url, queue, syncer, batch=1, prefetch=4, **seed_defaults())
    running = asyncio.create_task(consumer.run())
    await wait_until_async(started.is_set)
    await wait_until_async(lambda: rabbit.depth(queue) == 1)  # the first one came alone, then a window of 4
    consumer.stop()
    await wait_until_async(lambda: consumer.count.released == 4)
    assert not running.done()
    go_on.set()
    count = await running

    assert (count.ack, count.released, count.abandoned) == (1, 4, 0)
    assert rabbit.depth(queue) == 5
    said = [record.getMessage() for record in caplog.records]
    steps = ("consumer closed", "connection closed", "worker stopped")
    order = [next(at for at, line in enumerate(said) if line.startswith(step)) for step in steps]
    assert order == sorted(order)


@pytest.mark.spec("MW-003.3", "MW-006.3")
@pytest.mark.parametrize("kind", KINDS)
async def test_an_unknown_key_is_fatal_and_nothing_begins_after_it(
    rabbit: Rabbit, action: MakeAction, kind: str
) -> None:
    queue = rabbit.queue()
    info = sealed(b"{}") | {"encryptKey": {"public": "A" * 43}}
    rabbit.put(queue, action(1, personalInfo=info), *[action(number) for number in (2, 3, 4)])
    calls: list[int] = []

    def answer(message: dict[str, Any]) -> bool:
        calls.append(message["actionId"])
        return True

    together = {"within_s": 1.0} if "batch" in kind else {}
    consumer = consumer_of(kind, rabbit, queue, answer, key_store=Keys(), **together)
    with pytest.raises(FatalSyncerError, match="does not have this key"):
        async with asyncio.timeout(60):
            await consumer.run()

    assert calls == []
    assert rabbit.depth(queue) == 4
    assert consumer.count.fatal == 1
