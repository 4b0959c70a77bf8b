"""Lost connections, proved by the broker's own list of consumers."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pika.heartbeat import HeartbeatChecker
from tests.integration.rabbit.conftest import MakeAction, Rabbit, Recorder

from conquiet.core.backoff import Backoff
from conquiet.errors import QueueMissingError, RabbitConnectionError
from conquiet.rabbit import RabbitConsumer
from conquiet.rabbit.slow_start import SlowStart
from conquiet.testing import CloseMode, RabbitMQServer, wait_until_async
from conquiet.testing.proxy import FaultProxy
from conquiet.testing.shared import SharedRabbitMQ


def numbers(seen: list[Any]) -> list[int]:
    return sorted({message["actionId"] for message in seen})


async def acknowledged(consumer: RabbitConsumer, number: int) -> None:
    await wait_until_async(lambda: consumer.count.ack >= number)


async def test_a_connection_closed_by_the_broker_is_rebuilt_whole(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction, fast: dict[str, Any]
) -> None:
    queue = rabbit.queue()
    events: list[str] = []
    consumer = RabbitConsumer(rabbit.url, queue, recorder(), concurrency=3, tag="rebuilt", **fast)
    for name in ("connected", "lost"):
        consumer.on(name, lambda event: events.append(event.reason or event.kind.value))

    async with consumer:
        await asyncio.to_thread(rabbit.wait_for_consumers, 1)
        await wait_until_async(lambda: asyncio.to_thread(rabbit.close_connections_of, "rebuilt"), interval_s=0.2)
        await wait_until_async(lambda: consumer.count.reconnects == 1)
        [back] = await asyncio.to_thread(rabbit.wait_for_consumers, 1)
        rabbit.put(queue, action(1))
        await wait_until_async(lambda: consumer.count.ack == 1)

    assert events == ["connected", "connection: ConnectionClosedByBroker (320)", "connected"]
    assert back["prefetch_count"] == 6
    assert back["ack_required"] is True


async def test_a_consumer_starts_although_the_first_node_is_down(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction, closed_port: int
) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, action(1))
    urls = [f"amqp://guest:guest@127.0.0.1:{closed_port}/", rabbit.url]

    async with RabbitConsumer(urls, queue, recorder()) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 1)

    assert (consumer.count.queued, consumer.count.reconnects) == (1, 0)


@pytest.mark.parametrize("how", [CloseMode.RST, CloseMode.FIN])
async def test_a_late_settlement_of_an_old_channel_is_a_counted_no_op(
    rabbit: Rabbit, fault_proxy: Callable[[str], FaultProxy], action: MakeAction, fast: dict[str, Any], how: CloseMode
) -> None:
    """Sent on the new channel, the old tag would settle another message or close the channel."""
    queue = rabbit.queue()
    rabbit.put(queue, action(1))
    proxy = fault_proxy(rabbit.url)
    go_on = asyncio.Event()
    runs = 0

    async def slow_once(_: dict[str, Any]) -> bool:
        nonlocal runs
        runs += 1
        if runs == 1:
            await go_on.wait()
        return True

    consumer = RabbitConsumer(proxy.url_for(rabbit.url), queue, slow_once, concurrency=2, **fast)
    async with consumer:
        await wait_until_async(lambda: runs == 1)
        proxy.disconnect(how)
        await wait_until_async(lambda: consumer.count.ack == 1)  # delivered again and done on the new channel
        go_on.set()
        await wait_until_async(lambda: consumer.count.stale == 1)
        rabbit.put(queue, action(2))
        await wait_until_async(lambda: consumer.count.ack == 2)

    assert consumer.count.reconnects == 1, "the late disposition cost us the new channel"
    assert rabbit.take(queue) == rabbit.take("dead") == []


async def test_deliveries_waiting_on_a_lost_channel_are_not_run(
    rabbit: Rabbit, fault_proxy: Callable[[str], FaultProxy], action: MakeAction, fast: dict[str, Any]
) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, *[action(number) for number in range(4)])
    proxy = fault_proxy(rabbit.url)
    go_on = asyncio.Event()
    seen: list[int] = []

    async def slow_once(message: dict[str, Any]) -> bool:
        seen.append(message["actionId"])
        if len(seen) == 1:
            await go_on.wait()
        return True

    consumer = RabbitConsumer(proxy.url_for(rabbit.url), queue, slow_once, prefetch=4, **fast)
    async with consumer:
        session = consumer._session
        assert session is not None
        await wait_until_async(lambda: len(seen) == 1 and session._window.open_count == 4)
        proxy.disconnect()
        await wait_until_async(lambda: consumer.count.reconnects == 1)
        go_on.set()
        await wait_until_async(lambda: consumer.count.ack == 4)

    assert sorted(seen[1:]) == [0, 1, 2, 3]
    assert consumer.count.stale == 4  # one finished late, three never started


async def test_a_deleted_queue_is_waited_for_and_found_again(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction, fast: dict[str, Any]
) -> None:
    queue = rabbit.queue()
    async with RabbitConsumer(rabbit.url, queue, recorder(), **fast) as consumer:
        rabbit.channel.queue_delete(queue)
        rabbit.queue()
        rabbit.put(queue, action(1))
        await wait_until_async(lambda: consumer.count.ack == 1)
        await asyncio.to_thread(rabbit.wait_for_consumers, 1)

    assert consumer.count.reconnects == 1


async def test_a_queue_that_stays_deleted_is_an_error_after_bounded_attempts(
    rabbit: Rabbit, recorder: type[Recorder]
) -> None:
    queue = rabbit.queue()
    consumer = RabbitConsumer(
        rabbit.url, queue, recorder(), max_reconnects=3, reconnect=Backoff(base_s=0.01, cap_s=0.05)
    )
    running = asyncio.create_task(consumer.run())
    await consumer.ready()

    rabbit.channel.queue_delete(queue)

    with pytest.raises(QueueMissingError):
        async with asyncio.timeout(60):
            await running


async def test_a_broker_that_stays_away_is_an_error_after_bounded_attempts(
    rabbit: Rabbit, recorder: type[Recorder], fault_proxy: Callable[[str], FaultProxy]
) -> None:
    queue = rabbit.queue()
    proxy = fault_proxy(rabbit.url)
    options: Any = {"max_reconnects": 3, "reconnect": Backoff(base_s=0.01, cap_s=0.05), "connect_timeout_s": 2.0}
    consumer = RabbitConsumer(proxy.url_for(rabbit.url), queue, recorder(), **options)
    running = asyncio.create_task(consumer.run())
    await consumer.ready()

    proxy.refuse()
    proxy.disconnect()

    with pytest.raises(RabbitConnectionError, match=r"gave up after .*; the last one: \w+"):
        async with asyncio.timeout(60):
            await running


async def test_a_channel_error_rebuilds_the_link(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction, fast: dict[str, Any]
) -> None:
    """The broker replies to an acknowledgement of an unknown tag with 406 and the end of the channel."""
    queue = rabbit.queue()
    async with RabbitConsumer(rabbit.url, queue, recorder(), **fast) as consumer:
        assert consumer._session is not None
        consumer._session.link.ack(up_to=4711)
        await wait_until_async(lambda: consumer.count.reconnects == 1)
        rabbit.put(queue, action(1))
        await wait_until_async(lambda: consumer.count.ack == 1)


@pytest.mark.spec("MW-001.11", "MW-008.1")
async def test_the_depth_at_the_start_is_kept_over_a_reconnect(
    rabbit: Rabbit, action: MakeAction, fast: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "conquiet.rabbit")
    queue = rabbit.queue()
    rabbit.put(queue, action(1), action(2))
    go_on = asyncio.Event()

    async def syncer(_: dict[str, Any]) -> bool:
        await go_on.wait()
        return True

    async with RabbitConsumer(rabbit.url, queue, syncer, **fast) as consumer:
        assert consumer._session is not None
        rabbit.put(queue, action(3), action(4), action(5))
        consumer._session.link.ack(up_to=4711)
        await wait_until_async(lambda: consumer.count.reconnects == 1)
        go_on.set()
        await acknowledged(consumer, 5)

    assert consumer.count.queued == 2
    assert sum(record.getMessage().startswith("messages in the queue") for record in caplog.records) == 1


async def test_a_silent_peer_is_noticed_by_missing_heartbeats(
    rabbit: Rabbit,
    recorder: type[Recorder],
    action: MakeAction,
    fast: dict[str, Any],
    fault_proxy: Callable[[str], FaultProxy],
) -> None:
    queue = rabbit.queue()
    proxy = fault_proxy(rabbit.url)
    url = proxy.url_for(rabbit.url)
    async with RabbitConsumer(url, queue, recorder(), heartbeat_s=1, **fast) as consumer:
        proxy.stall()
        await wait_until_async(lambda: consumer._session is None)
        proxy.resume()
        rabbit.put(queue, action(1))
        await acknowledged(consumer, 1)

    assert consumer.count.reconnects >= 1


@pytest.mark.spec("MW-004.1")
async def test_a_plain_function_that_blocks_for_three_heartbeats_keeps_its_connection(
    rabbit: Rabbit, action: MakeAction, fast: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker gives up after two to three intervals; the library sends a heartbeat in each half of one."""
    queue = rabbit.queue()
    rabbit.put(queue, action(1))
    started, sent_meanwhile = threading.Event(), threading.Semaphore(0)
    send = HeartbeatChecker._send_heartbeat_frame

    def send_and_count(checker: Any) -> None:
        send(checker)
        if started.is_set():
            sent_meanwhile.release()

    monkeypatch.setattr(HeartbeatChecker, "_send_heartbeat_frame", send_and_count)

    def blocks(_: dict[str, Any]) -> bool:
        started.set()
        return all(sent_meanwhile.acquire(timeout=10) for _ in range(7))  # six half intervals lie between seven

    # 2 s: with 1 s the broker would correctly close the connection if the whole machine hangs for that long.
    async with RabbitConsumer(rabbit.url, queue, blocks, heartbeat_s=2, **fast) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 1)

    assert (consumer.count.reconnects, consumer.count.stale) == (0, 0)


async def test_a_blocked_loop_loses_its_connection_and_the_log_says_why(
    rabbit: Rabbit, action: MakeAction, fast: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The broker gives up after two to three heartbeats. The message is not lost: it is delivered once more."""
    queue, runs, blocked_s = rabbit.queue(), 0, 0.0
    rabbit.put(queue, action(1))

    async def blocks_once(_: dict[str, Any]) -> bool:
        nonlocal runs, blocked_s
        runs += 1
        if runs == 1:
            began = time.monotonic()
            rabbit.wait_for_depth(queue, 1, timeout_s=60)  # blocks until the broker has taken the message back
            blocked_s = time.monotonic() - began
        return True

    async with RabbitConsumer(rabbit.url, queue, blocks_once, heartbeat_s=1, **fast) as consumer:
        await wait_until_async(lambda: consumer.count.reconnects >= 1)
        await wait_until_async(lambda: runs >= 2)

    assert rabbit.take(queue) == rabbit.take("dead") == []
    stalls = [vars(record) for record in caplog.records if "event loop was blocked" in record.message]
    # It checks four times in a heartbeat, and reports tenths.
    assert max(record["stalled_s"] for record in stalls) >= blocked_s - 0.3
    assert {record["syncer"].rpartition(".")[2] for record in stalls} == {"blocks_once"}


@pytest.mark.parametrize(("quorum", "killed"), [(False, True), (True, False)])
async def test_a_node_restart_is_survived(
    rabbitmq_server: SharedRabbitMQ,
    rabbit: Rabbit,
    recorder: type[Recorder],
    action: MakeAction,
    fast: dict[str, Any],
    *,
    quorum: bool,
    killed: bool,
) -> None:
    """RabbitMQ 3.10 on one node: after kill -9 a quorum queue finds no leader, for raw clients either."""
    if not isinstance(rabbitmq_server, RabbitMQServer):
        pytest.fail("this test has to restart the broker: run it on a private one")
    queue = rabbit.queue(quorum=quorum)
    rabbit.put(queue, *[action(number) for number in range(3)])
    syncer = recorder()
    fast |= {"max_reconnects": 500}  # the broker takes its time

    async with RabbitConsumer(rabbit.url, queue, syncer, **fast) as consumer:
        await acknowledged(consumer, 3)
        rabbit.close()
        if killed:
            # RabbitMQ 3 confirms a declaration before Mnesia's log is on disk; the queue itself could be lost.
            await asyncio.to_thread(rabbitmq_server.ctl, "eval", "mnesia:sync_log().")
            await asyncio.to_thread(rabbitmq_server.kill)
        await asyncio.to_thread(rabbitmq_server.restart)
        await asyncio.to_thread(rabbit.wait_for_consumers, 1, 60)
        rabbit.put(queue, action(99))
        await wait_until_async(lambda: numbers(syncer.seen) == [0, 1, 2, 99])

    assert rabbit.take(queue) == rabbit.take("dead") == []


WIDENING = {
    # the request of the slow start with a late reply: its class and method, or bytes that only this request has
    "cancel": b"\x00\x3c\x00\x1e",
    "prefetch": b"\x00\x3c\x00\x0a\x00\x00\x00\x00\x00\x06",
    "consume": b"conquiet\x00",
}


@pytest.mark.parametrize("request_", WIDENING)
async def test_a_start_that_is_not_answered_in_time_begins_again(
    rabbit: Rabbit,
    recorder: type[Recorder],
    action: MakeAction,
    fast: dict[str, Any],
    fault_proxy: Callable[[str], FaultProxy],
    monkeypatch: pytest.MonkeyPatch,
    request_: str,
) -> None:
    """The late reply ends or begins a consumer that nothing waits for: the link would stay open without a consumer."""
    queue = rabbit.queue()
    rabbit.put(queue, *[action(number) for number in range(20)])
    proxy = fault_proxy(rabbit.url)
    proxy.stall_next_reply(WIDENING[request_])
    go_wide: Any = SlowStart._go_wide
    impatient: list[SlowStart] = []

    async def go_wide_impatiently(slow_start: Any) -> None:
        if not impatient:  # the first link only: on a busy machine a connection may take longer than this
            impatient.append(slow_start)
            slow_start._link._timeout_s = 1.0
        await go_wide(slow_start)

    monkeypatch.setattr(SlowStart, "_go_wide", go_wide_impatiently)
    options = {**fast, "connect_timeout_s": 60.0, "concurrency": 3}

    async with RabbitConsumer(proxy.url_for(rabbit.url), queue, recorder(), **options) as consumer:
        # A second, because of the request. The heartbeat would end the link after two minutes.
        await wait_until_async(lambda: consumer._session is None, timeout_s=60)
        proxy.disarm()
        proxy.resume()
        await acknowledged(consumer, 20)
        [now] = await asyncio.to_thread(rabbit.wait_for_consumers, 1)

    assert consumer.count.reconnects >= 1
    assert now["prefetch_count"] == 6
    assert rabbit.depth(queue) == 0
