"""A consumer ends gracefully or fatally, and always in the same order."""

import asyncio
import logging
import threading
from typing import Any

import pytest
from tests.integration.rabbit.conftest import MakeAction, Rabbit, Recorder

from conquiet.core.lifecycle import Status
from conquiet.errors import FatalSyncerError, LifecycleError
from conquiet.rabbit import RabbitConsumer
from conquiet.rabbit.connection import Link
from conquiet.testing import wait_until_async

ORDER = ["consumer closed", "connection closed", "worker stopped"]


async def acknowledged(consumer: RabbitConsumer, number: int) -> None:
    await wait_until_async(lambda: consumer.count.ack == number)


class Held:
    """A syncer that begins and ends when it is released: a coroutine function, or a plain one in a thread."""

    def __init__(self, *, plain: bool) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.syncer: Any = self._in_a_thread if plain else self._on_the_loop

    def _in_a_thread(self, _: dict[str, Any]) -> bool:
        self.begun.set()
        return self.go_on.wait(60)

    async def _on_the_loop(self, _: dict[str, Any]) -> bool:
        self.begun.set()
        return await wait_until_async(self.go_on.is_set)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the texts without their facts, and without the lines about the start."""
    said = [record.getMessage() for record in caplog.records if record.name.startswith("conquiet.rabbit")]
    texts = [text.partition(" [")[0].partition(": ")[0] for text in said]
    return [text for text in texts if text not in {"worker starts", "worker ready", "worker draining"}]


@pytest.mark.spec("MW-004.5", "MW-004.6", "MW-006.1", "MW-006.2", "MW-006.3", "MW-007.1", "MW-007.2")
@pytest.mark.parametrize("answer", [ValueError("jane@example.org"), None, 1, "true", SystemExit(3)])
async def test_a_broken_contract_ends_everything_and_leaves_the_message_in_the_queue(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    caplog.set_level(logging.INFO, "conquiet.rabbit")
    queue = rabbit.queue()
    rabbit.put(queue, action(1), action(2), action(3))
    syncer = recorder(answer)
    consumer = RabbitConsumer(rabbit.url, queue, syncer)

    with pytest.raises(FatalSyncerError) as caught:
        await consumer.run()

    assert len(syncer.seen) == 1, "something started after the fatal error"
    assert rabbit.depth(queue) == 3
    assert rabbit.take("dead") == []
    assert (consumer.count.ack, consumer.count.nack, consumer.count.fatal) == (0, 0, 1)
    assert messages(caplog) == ["messages in the queue", "fatal error, the consumer stops", *ORDER]
    assert caught.value.__cause__ is (answer if isinstance(answer, BaseException) else None)
    assert "jane" not in str(caught.value)
    assert rabbit.channel.queue_declare(queue, passive=True).method.consumer_count == 0


@pytest.mark.spec("MW-006.2", "MW-007.1")
@pytest.mark.parametrize("ending", ["stop", "fatal", "cancelled"])
async def test_consumption_channel_and_connection_are_closed_in_this_order(
    rabbit: Rabbit, action: MakeAction, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """The log shows it too; here it is checked on the connection."""
    queue = rabbit.queue()
    rabbit.put(queue, action(1))
    steps: list[tuple[str, bool]] = []
    close_channel, abort = Link.close_channel, Link.abort

    async def closing_channel(link: Link) -> None:
        steps.append(("channel", link._consumer_tag is None))
        await close_channel(link)

    def closing_connection(link: Link) -> None:
        steps.append(("connection", not link._channel.is_open))
        abort(link)

    monkeypatch.setattr(Link, "close_channel", closing_channel)
    monkeypatch.setattr(Link, "abort", closing_connection)

    async def syncer(_: dict[str, Any]) -> Any:
        return None if ending == "fatal" else True

    consumer = RabbitConsumer(rabbit.url, queue, syncer)
    running = asyncio.create_task(consumer.run())
    await wait_until_async(lambda: consumer.count.ack + consumer.count.fatal == 1)
    if ending == "stop":
        consumer.stop()
    elif ending == "cancelled":
        running.cancel()
    await asyncio.wait({running})

    assert running.cancelled() if ending == "cancelled" else (running.exception() is None) == (ending == "stop")
    # Nothing is consumed any more when the channel is closed, and no channel is open when the connection is.
    assert list(dict.fromkeys(steps)) == [("channel", True), ("connection", True)]
    assert rabbit.depth(queue) == (1 if ending == "fatal" else 0)


@pytest.mark.spec("MW-006.3", "MW-004.5")
async def test_a_plain_function_is_held_to_the_same_contract(rabbit: Rabbit, action: MakeAction) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, action(1))

    def fails(_: dict[str, Any]) -> bool:
        raise LookupError("jane@example.org")

    with pytest.raises(FatalSyncerError, match="raised LookupError"):
        await RabbitConsumer(rabbit.url, queue, fails).run()

    assert rabbit.depth(queue) == 1


@pytest.mark.spec("MW-004.5", "MW-006.3")
@pytest.mark.parametrize("fatal", [RuntimeError(), None])
async def test_after_a_fatal_verdict_a_thread_begins_nothing_new(
    rabbit: Rabbit, action: MakeAction, fatal: Any
) -> None:
    """The thread is free for the next message before the loop has seen the verdict."""
    queue = rabbit.queue()
    rabbit.put(queue, *[action(number) for number in range(6)])
    calls: list[int] = []
    received = threading.Event()

    def syncer(message: dict[str, Any]) -> Any:
        calls.append(message["actionId"])
        if len(calls) > 1:
            return True
        assert received.wait(60)
        if fatal is not None:
            raise fatal
        return None

    consumer = RabbitConsumer(rabbit.url, queue, syncer, prefetch=6)
    running = asyncio.create_task(consumer.run())
    await wait_until_async(lambda: consumer._session is not None and consumer._session._window.open_count == 6)
    received.set()
    with pytest.raises(FatalSyncerError):
        await running

    assert calls == [0]
    assert (consumer.count.fatal, consumer.count.released, consumer.count.ack) == (1, 5, 0)
    assert rabbit.depth(queue) == 6


@pytest.mark.spec("MW-006.3")
async def test_after_a_fatal_verdict_other_threads_finish_what_they_began(rabbit: Rabbit, action: MakeAction) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, *[action(number) for number in range(6)])
    calls: list[int] = []
    both, failed = threading.Barrier(2), threading.Event()

    def syncer(message: dict[str, Any]) -> bool:
        calls.append(message["actionId"])
        both.wait(60)
        if message["actionId"] == 0:
            raise RuntimeError
        return failed.wait(60)

    consumer = RabbitConsumer(rabbit.url, queue, syncer, concurrency=2, prefetch=6)
    running = asyncio.create_task(consumer.run())
    await wait_until_async(lambda: consumer.count.fatal == 1)
    failed.set()
    with pytest.raises(FatalSyncerError):
        await running

    assert sorted(calls) == [0, 1]
    assert (consumer.count.ack, consumer.count.fatal, consumer.count.abandoned) == (1, 1, 0)
    assert rabbit.depth(queue) == 5


@pytest.mark.spec("MW-006.3")
async def test_running_handlers_finish_and_the_fatal_message_stays_unacknowledged(
    rabbit: Rabbit, action: MakeAction
) -> None:
    """The fatal message has the lowest tag: a careless multiple-ack would settle it."""
    queue = rabbit.queue()
    rabbit.put(queue, *[action(number) for number in range(1, 5)])
    failed = asyncio.Event()

    async def syncer(message: dict[str, Any]) -> bool:
        if message["actionId"] == 1:
            failed.set()
            raise RuntimeError
        await failed.wait()
        return True

    consumer = RabbitConsumer(rabbit.url, queue, syncer, concurrency=4)
    with pytest.raises(FatalSyncerError):
        await consumer.run()

    left = [body for _, body in rabbit.take(queue)]
    assert len(left) == 4 - consumer.count.ack
    assert sum(b'"actionId": 1' in body for body in left) == 1


async def test_the_poison_guard_parks_the_second_crash(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction
) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, action(1))
    fates, counted = [], []
    for _ in range(2):
        consumer = RabbitConsumer(rabbit.url, queue, recorder(ValueError()), poison_guard=True)
        with pytest.raises(FatalSyncerError) as caught:
            await consumer.run()
        fates.append(str(caught.value).rpartition("the message ")[2])
        counted.append((consumer.count.fatal, consumer.count.dead_lettered))

    assert rabbit.depth(queue) == 0
    assert len(rabbit.take("dead")) == 1
    assert fates == ["is back in the queue", "was dead-lettered"]
    assert counted == [(1, 0), (1, 1)]


@pytest.mark.parametrize("plain", [False, True])
async def test_in_an_outage_the_poison_guard_parks_one_message_a_process(
    rabbit: Rabbit, action: MakeAction, *, plain: bool
) -> None:
    """Every message fails then. Without this bound each start dead-letters all running messages."""
    queue = rabbit.queue()
    rabbit.put(queue, *[action(number) for number in range(8)])
    parked = []
    for at_once in (4, 1, 1):  # from the second start on all are redelivered, and the first of those runs alone
        together = threading.Barrier(at_once)  # messages in threads fail immediately
        running = 0

        def in_a_thread(_: Any, together: threading.Barrier = together) -> bool:
            together.wait(60)
            raise OSError

        async def on_the_loop(_: Any, at_once: int = at_once) -> bool:
            nonlocal running
            running += 1
            await wait_until_async(lambda: running == at_once)
            raise OSError

        syncer: Any = in_a_thread if plain else on_the_loop
        consumer = RabbitConsumer(rabbit.url, queue, syncer, concurrency=4, poison_guard=True)
        with pytest.raises(FatalSyncerError):
            await consumer.run()
        assert consumer.count.fatal == at_once
        parked.append(consumer.count.dead_lettered)

    assert parked == [0, 1, 1]
    rabbit.wait_for_depth("dead", 2)
    assert rabbit.depth(queue) == 6


@pytest.mark.spec("MW-007.1", "MW-007.2", "MW-007.4", "MW-008.2")
@pytest.mark.parametrize("plain", [False, True])
async def test_a_stop_lets_running_handlers_finish_and_releases_the_rest(
    rabbit: Rabbit, action: MakeAction, caplog: pytest.LogCaptureFixture, *, plain: bool
) -> None:
    caplog.set_level(logging.INFO, "conquiet.rabbit")
    queue = rabbit.queue()
    rabbit.put(queue, *[action(number) for number in range(6)])
    held = Held(plain=plain)
    consumer = RabbitConsumer(rabbit.url, queue, held.syncer, prefetch=4)
    running = asyncio.create_task(consumer.run())
    await wait_until_async(held.begun.is_set)
    await wait_until_async(lambda: rabbit.depth(queue) == 1)  # the first one came alone, then a window of 4
    consumer.stop()
    await wait_until_async(lambda: consumer.count.released == 4)
    assert not running.done()
    held.go_on.set()

    count = await running

    assert (count.ack, count.released, count.abandoned) == (1, 4, 0)
    assert rabbit.depth(queue) == 5
    assert messages(caplog)[-3:] == ORDER
    final = vars(caplog.records[-1])["counters"]
    assert (final["ack"], final["nack"]) == (1, 0)


@pytest.mark.parametrize("plain", [False, True])
async def test_a_second_stop_ends_the_grace_period(rabbit: Rabbit, action: MakeAction, *, plain: bool) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, action(1))
    held = Held(plain=plain)
    consumer = RabbitConsumer(rabbit.url, queue, held.syncer, grace_s=600.0)
    running = asyncio.create_task(consumer.run())
    await wait_until_async(held.begun.is_set)
    consumer.stop()
    await asyncio.sleep(0)
    assert consumer.health().reason == "stopping"
    assert not running.done()
    consumer.stop()

    async with asyncio.timeout(60):
        await running
    held.go_on.set()
    assert consumer.abandoned == 1
    rabbit.wait_for_depth(queue, 1)


@pytest.mark.parametrize("quorum", [False, True])
async def test_a_stop_while_the_window_widens_returns_all_that_came(
    rabbit: Rabbit, action: MakeAction, *, quorum: bool
) -> None:
    queue = rabbit.queue(quorum=quorum)
    rabbit.put(queue, *[action(number) for number in range(6)])

    async def stops(_: dict[str, Any]) -> bool:
        consumer.stop()
        return True

    consumer = RabbitConsumer(rabbit.url, queue, stops, prefetch=4)
    count = await consumer.run()

    rabbit.wait_for_depth(queue, 5)
    again = [rabbit.channel.basic_get(queue)[0].redelivered for _ in range(5)]
    assert (count.ack, count.released, count.abandoned) == (1, sum(again), 0)


@pytest.mark.spec("MW-007.4")
@pytest.mark.parametrize("plain", [False, True])
async def test_a_handler_beyond_the_grace_period_is_abandoned_and_counted(
    rabbit: Rabbit, action: MakeAction, *, plain: bool
) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, action(1))
    held = Held(plain=plain)
    consumer = RabbitConsumer(rabbit.url, queue, held.syncer, grace_s=0.2)
    running = asyncio.create_task(consumer.run())
    await wait_until_async(held.begun.is_set)
    consumer.stop()

    async with asyncio.timeout(60):
        count = await running
    held.go_on.set()

    assert (count.ack, count.abandoned) == (0, 1)
    assert rabbit.depth(queue) == 1


async def test_a_syncer_that_closes_its_own_consumer_does_not_deadlock(rabbit: Rabbit, action: MakeAction) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, action(1))

    async def closes(_: dict[str, Any]) -> bool:
        await consumer.close()
        return True

    consumer = RabbitConsumer(rabbit.url, queue, closes)
    async with asyncio.timeout(60):
        count = await consumer.run()

    assert count.ack == 1


@pytest.mark.parametrize("subscribing", [False, True])
async def test_a_cancelled_run_still_closes_in_order(
    rabbit: Rabbit,
    recorder: type[Recorder],
    action: MakeAction,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    subscribing: bool,
) -> None:
    """The first message may be done before the broker's reply to the subscription was read."""
    caplog.set_level(logging.INFO, "conquiet.rabbit")
    queue = rabbit.queue()
    rabbit.put(queue, action(1))
    consumer = RabbitConsumer(rabbit.url, queue, recorder())
    subscribe = Link.consume

    async def never_looks(link: Link, *arguments: Any, **options: Any) -> None:
        await subscribe(link, *arguments, **options)
        await asyncio.Event().wait()

    if subscribing:
        monkeypatch.setattr(Link, "consume", never_looks)
    running = asyncio.create_task(consumer.run())
    await wait_until_async(lambda: consumer.count.ack == 1)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert messages(caplog)[-3:] == ORDER
    assert rabbit.depth(queue) == 0


@pytest.mark.parametrize("plain", [False, True])
async def test_a_cancellation_after_a_stop_lets_the_syncer_finish(
    rabbit: Rabbit, action: MakeAction, *, plain: bool
) -> None:
    """The syncer uses resources of the surrounding blocks, and a thread would use them after the blocks were left."""
    queue = rabbit.queue()
    rabbit.put(queue, action(1))
    held = Held(plain=plain)
    consumer = RabbitConsumer(rabbit.url, queue, held.syncer)
    running = asyncio.create_task(consumer.run())
    await wait_until_async(held.begun.is_set)
    consumer.stop()
    await asyncio.wait({running}, timeout=0.1)

    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=0.3)
    held.go_on.set()
    await asyncio.wait({running})

    assert not done
    assert running.cancelled()
    assert (consumer.count.ack, consumer.count.abandoned) == (1, 0)
    rabbit.wait_for_depth(queue, 0)


@pytest.mark.parametrize("plain", [False, True])
async def test_a_run_that_is_cancelled_twice_keeps_no_message(
    rabbit: Rabbit, action: MakeAction, *, plain: bool
) -> None:
    """Its connection would stay open, and the broker would keep the messages unacknowledged."""
    queue = rabbit.queue()
    rabbit.put(queue, action(1), action(2))
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def waits(_: dict[str, Any]) -> bool:
        begun.set()
        await asyncio.Event().wait()
        return True

    def blocks(_: dict[str, Any]) -> bool:
        loop.call_soon_threadsafe(begun.set)
        return go_on.wait()

    consumer = RabbitConsumer(rabbit.url, queue, blocks if plain else waits)
    running = asyncio.create_task(consumer.run())
    await begun.wait()
    session = consumer._session
    assert session is not None

    running.cancel()
    # The second message was not sent yet, or is on its way, or is back: in each case it is not abandoned.
    await asyncio.to_thread(rabbit.wait_for_depth, queue, 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert session.link._connection.is_closed
    await asyncio.to_thread(rabbit.wait_for_depth, queue, 2)
    await wait_until_async(lambda: len(asyncio.all_tasks()) == 1)  # we
    assert consumer.count.abandoned == 1
    go_on.set()


async def test_a_consumer_lives_once(rabbit: Rabbit, recorder: type[Recorder]) -> None:
    queue = rabbit.queue()
    consumer = RabbitConsumer(rabbit.url, queue, recorder())
    async with consumer:
        await consumer.close()
        await consumer.close()

    assert consumer.status is Status.STOPPED
    with pytest.raises(LifecycleError):
        await consumer.run()
    never_started = RabbitConsumer(rabbit.url, queue, recorder())
    await never_started.close()
    with pytest.raises(LifecycleError):
        await never_started.run()


async def test_a_fatal_error_inside_async_with_is_raised_at_its_end(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction
) -> None:
    queue = rabbit.queue()

    async def broken() -> None:
        async with RabbitConsumer(rabbit.url, queue, recorder(None)) as consumer:
            rabbit.put(queue, action(1))
            await wait_until_async(lambda: consumer.status is Status.STOPPED)

    with pytest.raises(FatalSyncerError):
        await broken()


@pytest.mark.spec("MW-008.4", "MW-008.5")
async def test_a_new_consumer_counts_from_zero(rabbit: Rabbit, recorder: type[Recorder], action: MakeAction) -> None:
    queue = rabbit.queue()
    for _ in range(2):
        rabbit.put(queue, action(1))
        async with RabbitConsumer(rabbit.url, queue, recorder()) as consumer:
            await acknowledged(consumer, 1)
        assert consumer.count.ack == 1
