"""Recovery reaches what one look cannot: the consumers behind the bound, and entries an old server cannot drop."""

from collections.abc import Callable
from typing import Any, Protocol

import pytest
from sqlalchemy import create_engine
from tests.redis_clients import RawRedis

from conquiet.db import DbSession
from conquiet.queue import QueueConsumer, QueueMessage, RedisStreamsQueue, pending_scan

PendingOf = Callable[..., dict[str, tuple[str, int]]]


class MakeQueue(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> RedisStreamsQueue: ...


class MakeConsumer(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> QueueConsumer: ...


def test_the_consumer_behind_the_bound_of_one_scan_is_scanned_later(
    make_queue: MakeQueue, raw: RawRedis, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call here scans one consumer; the stale entry belongs to the last of them."""
    monkeypatch.setattr(pending_scan, "SMALL_GROUP", 0)
    monkeypatch.setattr(pending_scan, "MAX_TARGETS", 1)
    names = ["a", "b", "c"]
    queues = [make_queue(name) for name in names]
    ids = queues[0].enqueue_many([{"n": n} for n in range(len(names))])
    for queue in queues:
        queue.read(100)
    raw.xclaim(stream, "billing", "c", 0, [ids[2]], idle=120_000, justid=True)

    found = [message.id for _ in names for message in queues[0].claim_stale(60_000)]

    assert found == [ids[2]]


def test_a_deleted_entry_that_an_old_server_claims_is_dropped(
    make_queue: MakeQueue, raw: RawRedis, stream: str, pending: PendingOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis 6.2 replies nil for it and keeps it pending, so each claim would return it again."""
    alice, bob = make_queue("alice"), make_queue("bob")
    message_id = alice.enqueue({"n": 1})
    alice.read(100)
    raw.xclaim(stream, "billing", "alice", 0, [message_id], idle=120_000, justid=True)
    raw.xdel(stream, message_id)
    call = bob._call

    def like_62(command: str, packed: bytes, **options: Any) -> Any:
        return [None] if command == "XCLAIM" else call(command, packed, **options)

    monkeypatch.setattr(bob, "_call", like_62)
    batch = bob.claim_stale(60_000)

    assert batch.deleted == (message_id,)
    assert pending() == {}


def test_the_recovery_loop_continues_immediately_behind_a_deleted_entry(
    make_queue: MakeQueue, make_consumer: MakeConsumer, raw: RawRedis, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dropped entry is not an empty list: a pause for each of many would delay the entries behind them for hours."""
    alice, bob = make_queue("alice"), make_consumer("bob")
    ids = alice.enqueue_many([{"n": 1}, {"n": 2}])
    alice.read(100, 2)
    raw.xclaim(stream, "billing", "alice", 0, ids, idle=120_000, justid=True)
    raw.xdel(stream, ids[0])
    happened: list[str] = []

    def handle(msg: QueueMessage, session: DbSession) -> None:
        happened.append(msg.id)

    def sleep(_: float) -> None:
        happened.append("sleep")
        bob.stop()

    monkeypatch.setattr(bob, "sleep", sleep)
    engine = create_engine("sqlite://")
    bob.run_claim_stale(handler=handle, engine=engine, min_idle_ms=60_000)
    engine.dispose()

    assert happened == [ids[1], "sleep"]
