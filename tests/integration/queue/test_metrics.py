"""Metrics: counted once, by the low-level queue, and only when Redis has confirmed. Seed 001 §7."""

from collections.abc import Callable
from typing import Any, Protocol

import pytest
from prometheus_client import REGISTRY
from tests.integration.queue.conftest import Connect
from tests.redis_clients import RawRedis

from conquiet.errors import MalformedMessageError, QueueError
from conquiet.queue import QueueConsumer, RedisStreamsQueue
from conquiet.testing import FaultProxy

NAMES = [
    "messages_read", "messages_ack", "messages_claimed", "messages_malformed", "messages_deleted", "ack_noop",
    "messages_enqueued", "messages_recovered",
]  # fmt: skip


class MakeQueue(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> RedisStreamsQueue: ...


@pytest.fixture
def counted(stream: str) -> Callable[[], dict[str, float]]:
    def ask() -> dict[str, float]:
        labels = {"stream": stream}
        found = {name: REGISTRY.get_sample_value(f"conquiet_queue_{name}_total", labels) or 0 for name in NAMES}
        found["latencies"] = REGISTRY.get_sample_value("conquiet_queue_read_latency_seconds_count", labels) or 0
        return {name: value for name, value in found.items() if value}

    return ask


@pytest.mark.spec(
    "RS-007.1", "RS-007.2", "RS-007.3", "RS-007.4", "CQ-006.20", "CQ-006.21", "CQ-006.22", "CQ-006.23", "CQ-006.41",
    "CQ-006.42", "CQ-006.43", "CQ-007.3", "QC-003.6", "RS-006.3", "CQ-001.12",
)  # fmt: skip
def test_reads_acks_and_claims_are_counted_once_each(
    consumer: QueueConsumer,
    make_queue: MakeQueue,
    raw: RawRedis,
    stream: str,
    counted: Callable[[], dict[str, float]],
) -> None:
    ids = consumer.queue.enqueue_many([{"n": n} for n in range(4)])
    assert counted() == {"messages_enqueued": 4}

    first = consumer.next()
    assert first is not None
    consumer.ack(first)
    consumer.queue.read(100, 3)
    raw.xclaim(stream, "billing", "alice", 0, ids[1:3], idle=60_000, justid=True)
    make_queue("bob").claim_stale(30_000)
    consumer.next(block_ms=20)  # empty: nothing to count

    assert counted() == {
        "messages_enqueued": 4, "messages_read": 4, "messages_ack": 1, "messages_claimed": 2, "latencies": 2,
    }  # fmt: skip


@pytest.mark.spec("CQ-001.12")
def test_every_operation_on_messages_is_counted(
    queue: RedisStreamsQueue, counted: Callable[[], dict[str, float]]
) -> None:
    """Adding by each of three ways, and reading one's own again: no seed names a metric for them."""
    queue.enqueue({"n": 1})
    queue.enqueue({"n": 2}, idempotency_key="k")
    queue.enqueue_many([{"n": 3}, {"n": 4}])
    queue.read(100, 4)
    queue.recover_own(3)

    assert counted() == {"messages_enqueued": 4, "messages_read": 4, "latencies": 1, "messages_recovered": 3}


def test_malformed_deleted_and_pointless_are_counted_too(
    queue: RedisStreamsQueue,
    raw: RawRedis,
    stream: str,
    add_raw: Callable[..., str],
    counted: Callable[[], dict[str, float]],
) -> None:
    add_raw({"data": "oops"})
    with pytest.raises(MalformedMessageError):
        queue.read(100)
    message_id = queue.enqueue({"n": 1})
    (message,) = queue.read(100)
    raw.xdel(stream, message_id)
    with pytest.raises(MalformedMessageError):
        queue.recover_own()
    queue.ack(message)

    assert counted() == {
        "messages_enqueued": 1, "messages_read": 1, "latencies": 1, "messages_malformed": 2, "messages_deleted": 1,
        "ack_noop": 1,
    }  # fmt: skip


@pytest.mark.spec("RS-007.5")
def test_a_failed_command_is_not_counted(
    make_queue: MakeQueue,
    connect: Connect,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    counted: Callable[[], dict[str, float]],
) -> None:
    proxy = fault_proxy(redis_url)
    queue = make_queue(client=connect(proxy.url_for(redis_url)))
    queue.enqueue_many([{"n": 1}, {"n": 2}])
    (message,) = queue.read(100)
    before = counted()

    for word, step in (
        (b"XREADGROUP", lambda: queue.read(100)),
        (b"XACK", lambda: queue.ack(message)),
        (b"XPENDING", lambda: queue.claim_stale(1)),
    ):
        proxy.drop_next_reply(word)
        with pytest.raises(QueueError):
            step()

    assert counted() == before


@pytest.mark.spec("RS-007.6", "QC-012.1", "QC-012.2")
def test_a_broken_registry_does_not_fail_the_work(
    queue: RedisStreamsQueue, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    names = {sample.name for sample in samples if sample.labels.get("stream") == stream}
    assert {name.removesuffix("_created").removesuffix("_total") for name in names} <= {
        *(f"conquiet_queue_{name}" for name in NAMES),
        *(f"conquiet_queue_read_latency_seconds{suffix}" for suffix in ("", "_bucket", "_count", "_sum")),
    }

    def broken(_: str) -> Any:
        raise RuntimeError("no metrics today")

    monkeypatch.setattr("conquiet.queue.metrics._metrics", broken)
    queue.enqueue({"n": 1})
    (message,) = queue.read(100)
    queue.ack(message)
