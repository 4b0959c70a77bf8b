"""Rules about reading, checked for every way to read: counted, nothing acknowledged, no thread, no loop."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Engine, create_engine
from tests.integration.queue.conftest import Connect, MakeConsumer, Pending
from tests.redis_clients import RawRedis

from conquiet.errors import QueueError
from conquiet.queue import QueueConsumer
from conquiet.testing import FaultProxy

Read = Callable[[QueueConsumer], int]


def claim(consumer: QueueConsumer) -> int:
    return len(consumer.claim_stale(1))


WAYS: dict[str, Read] = {
    "next": lambda consumer: sum(consumer.next(block_ms=50) is not None for _ in range(3)),
    "next, a long wait": lambda consumer: sum(consumer.next(block_ms=1_500) is not None for _ in range(3)),
    "next_batch": lambda consumer: len(consumer.next_batch(3, block_ms=50)),
    "next_batch, a long wait": lambda consumer: len(consumer.next_batch(3, block_ms=1_500)),
    "iter_messages": lambda consumer: len(list(itertools.islice(consumer.iter_messages(), 3))),
    "read": lambda consumer: len(consumer.queue.read(50, 3)),
}
COMMANDS: dict[str, tuple[Callable[[QueueConsumer], object], str]] = {
    # the call, and the command that it sends once
    "read": (lambda consumer: consumer.queue.read(50, 3), "xreadgroup"),
    "next_batch": (lambda consumer: consumer.next_batch(3, block_ms=50), "xreadgroup"),
    "enqueue": (lambda consumer: consumer.queue.enqueue({"n": 9}), "xadd"),
    "ack_id": (lambda consumer: consumer.ack_id("1-1"), "xack"),
    "recover_own": (lambda consumer: consumer.recover_own(2), "xreadgroup"),
}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    yield made
    made.dispose()


def counted(name: str, stream: str) -> float:
    return REGISTRY.get_sample_value(f"conquiet_queue_{name}", {"stream": stream}) or 0.0


@pytest.mark.spec("CQ-006.41", "CQ-001.12", "RS-007.1", "RS-007.4")
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_read_counts_and_times_what_it_got(consumer: QueueConsumer, stream: str, way: str) -> None:
    consumer.queue.enqueue_many([{"n": n} for n in range(3)])
    before = counted("messages_read_total", stream), counted("read_latency_seconds_count", stream)

    assert WAYS[way](consumer) == 3

    assert counted("messages_read_total", stream) == before[0] + 3
    assert counted("read_latency_seconds_count", stream) > before[1]


@pytest.mark.spec("CQ-006.41", "CQ-006.43", "RS-007.1", "RS-007.3")
def test_malformed_and_deleted_entries_hide_no_others_from_the_counters(
    consumer: QueueConsumer, make_consumer: MakeConsumer, raw: RawRedis, stream: str
) -> None:
    first, gone = consumer.queue.enqueue_many([{"n": 1}, {"n": 2}])
    bad = raw.xadd(stream, {"data": "oops"}).decode()
    last = consumer.queue.enqueue({"n": 3})

    assert len(consumer.next_batch(4, block_ms=50)) == 3
    assert (counted("messages_read_total", stream), counted("read_latency_seconds_count", stream)) == (3, 1)

    raw.xdel(stream, gone)
    raw.xclaim(stream, "billing", "alice", 0, [first, gone, bad, last], idle=60_000, justid=True)
    assert len(make_consumer("bob").claim_stale(30_000)) == 2
    assert counted("messages_claimed_total", stream) == 2


@pytest.mark.spec("QC-008.3", "CQ-001.10", "CQ-006.31", "CQ-006.45", "QC-004.1", "RS-006.5")
@pytest.mark.parametrize("way", [*WAYS, "claim_stale", "recover_own"])
def test_no_way_to_get_messages_acknowledges_them(
    consumer: QueueConsumer, make_consumer: MakeConsumer, raw: RawRedis, stream: str, pending: Pending, way: str
) -> None:
    ids = consumer.queue.enqueue_many([{"n": n} for n in range(3)])
    if way == "claim_stale":
        make_consumer("bob").next_batch(3)
        raw.xclaim(stream, "billing", "bob", 0, ids, idle=60_000, justid=True)
        assert claim(consumer) == 3
    elif way == "recover_own":
        consumer.next_batch(3)
        assert len(consumer.recover_own()) == 3
    else:
        assert WAYS[way](consumer) == 3
    consumer.close()

    assert sorted(pending()) == sorted(ids)
    assert counted("messages_ack_total", stream) == 0


@pytest.mark.spec("QC-002.4")
@pytest.mark.parametrize("way", WAYS)
def test_no_way_to_read_starts_a_thread(consumer: QueueConsumer, way: str) -> None:
    consumer.queue.enqueue_many([{"n": n} for n in range(3)])
    before = set(threading.enumerate())

    WAYS[way](consumer)

    assert set(threading.enumerate()) <= before


@pytest.mark.spec("QC-006.7", "QC-007.6", "QC-009.1")
@pytest.mark.parametrize("fault", ["request", "reply"])
@pytest.mark.parametrize("block_ms", [50, 5_000], ids=["one read", "slices"])
@pytest.mark.parametrize("way", ["next", "next_batch", "iter_messages"])
def test_no_way_to_read_swallows_a_lost_connection(
    make_consumer: MakeConsumer,
    connect: Connect,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    way: str,
    block_ms: int,
    fault: str,
) -> None:
    proxy = fault_proxy(redis_url)
    far = make_consumer(client=connect(proxy.url_for(redis_url)), block_ms=block_ms)
    far.queue.enqueue({"n": 1})
    ways: dict[str, Callable[[], object]] = {
        "next": far.next,
        "next_batch": lambda: far.next_batch(5),
        "iter_messages": lambda: next(far.iter_messages()),
    }
    drop = proxy.drop_next_request if fault == "request" else proxy.drop_next_reply
    drop(b"XREADGROUP")

    with pytest.raises(QueueError) as caught:
        ways[way]()

    assert (caught.value.command, caught.value.in_doubt) == ("XREADGROUP", True)


@pytest.mark.spec("RS-005.2")
@pytest.mark.parametrize("name", COMMANDS)
def test_no_method_of_the_queue_repeats_its_command(
    consumer: QueueConsumer, commands_of: Callable[[], dict[str, int]], raw: RawRedis, name: str
) -> None:
    consumer.queue.enqueue({"n": 1})
    consumer.next_batch(1)
    raw.config_resetstat()
    call, command = COMMANDS[name]

    call(consumer)

    assert commands_of().get(command) == 1


@pytest.mark.spec("QC-001.6", "QC-004.3", "RS-006.7")
@pytest.mark.parametrize("way", ["run", "run recovering", "run_batches", "run_claim_stale"])
def test_no_way_to_run_swallows_what_the_handler_raised(
    consumer: QueueConsumer,
    make_consumer: MakeConsumer,
    engine: Engine,
    raw: RawRedis,
    stream: str,
    pending: Pending,
    way: str,
) -> None:
    (entry,) = consumer.queue.enqueue_many([{"n": 1}])
    raised = LookupError("no")

    def handler(msg: Any, session: Any) -> None:
        raise raised

    if way == "run recovering":
        consumer.next()
    elif way == "run_claim_stale":
        make_consumer("bob").next()
        raw.xclaim(stream, "billing", "bob", 0, [entry], idle=3_600_000, justid=True)
    ways: dict[str, Callable[[], None]] = {
        "run": lambda: consumer.run(handler=handler, engine=engine),
        "run recovering": lambda: consumer.run(handler=handler, engine=engine, recover=True),
        "run_batches": lambda: consumer.run_batches(handler=handler, engine=engine, batch=5, within_s=0.01),
        "run_claim_stale": lambda: consumer.run_claim_stale(handler=handler, engine=engine),
    }
    with pytest.raises(LookupError) as caught:
        ways[way]()

    assert caught.value is raised
    assert list(pending()) == [entry]


def each(acknowledge: Callable[[Any], None]) -> Callable[[list[Any]], None]:
    def all_of(msgs: list[Any]) -> None:
        for msg in msgs:
            acknowledge(msg)

    return all_of


ACKS: dict[str, Callable[[QueueConsumer], Callable[[list[Any]], None]]] = {
    "ack": lambda consumer: each(consumer.ack),
    "ack_id": lambda consumer: each(lambda msg: consumer.ack_id(msg.id)),
    "queue.ack": lambda consumer: each(consumer.queue.ack),
    "queue.ack_id": lambda consumer: each(lambda msg: consumer.queue.ack_id(msg.id)),
    "queue.ack_many": lambda consumer: consumer.queue.ack_many,
}


@pytest.mark.spec("CQ-006.42", "CQ-006.15", "CQ-001.12", "RS-007.2")
@pytest.mark.parametrize("way", ACKS)
def test_every_way_to_acknowledge_ends_and_counts_what_was_pending_once(
    consumer: QueueConsumer, stream: str, pending: Pending, way: str
) -> None:
    consumer.queue.enqueue_many([{"n": n} for n in range(4)])
    msgs = consumer.next_batch(3, block_ms=50)
    (kept,) = consumer.next_batch(1, block_ms=50)
    acknowledge = ACKS[way](consumer)

    acknowledge(list(msgs))
    assert (counted("messages_ack_total", stream), counted("ack_noop_total", stream)) == (3, 0)
    acknowledge(list(msgs))  # not pending any more

    assert (counted("messages_ack_total", stream), counted("ack_noop_total", stream)) == (3, 3)
    assert list(pending()) == [kept.id]


@pytest.mark.spec("CQ-006.42", "RS-007.2")
def test_a_batch_is_acknowledged_and_counted_message_by_message(
    consumer: QueueConsumer, engine: Engine, stream: str, pending: Pending
) -> None:
    consumer.queue.enqueue_many([{"n": n} for n in range(5)])
    before = counted("messages_ack_total", stream)
    seen: list[Any] = []

    def handler(msgs: list[Any], session: Any) -> None:
        seen.extend(msgs)
        if len(seen) == 5:
            consumer.stop()

    consumer.run_batches(handler=handler, engine=engine, batch=5, within_s=0.2)

    assert counted("messages_ack_total", stream) == before + 5
    assert pending() == {}
