"""Rules of the queue, each tried at every method where it could be broken, and not only where it is likely."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Engine, create_engine, text
from tests.integration.queue.conftest import Connect
from tests.redis_clients import RawRedis

from conquiet.errors import GroupMissingError, MalformedMessageError, QueueError
from conquiet.queue import QueueConsumer, QueueMessage, RedisStreamsQueue
from conquiet.testing import FaultProxy, wait_until

PendingOf = Callable[..., dict[str, tuple[str, int]]]
Commands = Callable[[], dict[str, int]]
Method = Callable[[RedisStreamsQueue, QueueMessage], object]

METHODS: dict[str, Method] = {
    "enqueue": lambda queue, _: queue.enqueue({"n": 1}),
    "enqueue once": lambda queue, _: queue.enqueue({"n": 1}, idempotency_key="k"),
    "enqueue_many": lambda queue, _: queue.enqueue_many([{"n": 1}, {"n": 2}]),
    "read": lambda queue, _: queue.read(50),
    "recover_own": lambda queue, _: queue.recover_own(),
    "count_own": lambda queue, _: queue.count_own(),
    "claim_stale": lambda queue, _: queue.claim_stale(1),
    "extend": lambda queue, message: queue.extend(message),
    "ack": lambda queue, message: queue.ack(message),
    "ack_id": lambda queue, message: queue.ack_id(message.id),
    "ack_many": lambda queue, message: queue.ack_many([message]),
    "extend_many": lambda queue, message: queue.extend_many([message]),
    "backlog": lambda queue, _: queue.backlog(),
    "count_done": lambda queue, _: queue.count_done(),
}
ASKING_THE_GROUP = ("read", "recover_own", "count_own", "claim_stale", "extend", "extend_many", "backlog")


class MakeQueue(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> RedisStreamsQueue: ...


class MakeConsumer(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> QueueConsumer: ...


@pytest.fixture
def engine(db_url: str) -> Iterator[Engine]:
    made = create_engine(db_url)
    yield made
    made.dispose()


def one_pending(queue: RedisStreamsQueue) -> QueueMessage:
    queue.enqueue({"n": 0})
    (message,) = queue.read(100)
    return message


def make_idle(raw: RawRedis, stream: str, ids: list[str], consumer: str) -> None:
    raw.xclaim(stream, "billing", consumer, 0, ids, idle=120_000, justid=True)


# ---------------------------------------------------------------- what is never done
@pytest.mark.spec(
    "RS-001.3", "RS-001.4", "RS-001.7", "RS-001.8", "RS-001.9", "RS-005.1", "RS-005.6", "RS-005.4", "QC-012.3",
)  # fmt: skip
def test_no_method_trims_cleans_up_dead_letters_or_touches_a_signal(
    make_queue: MakeQueue, add_raw: Callable[..., str], raw: RawRedis, stream: str, commands_of: Commands
) -> None:
    """Malformed, deleted, stale, acknowledged, closed: where an automatic repair would be likely."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    alice, bob = make_queue("alice"), make_queue("bob")
    message = one_pending(alice)
    bad = add_raw({"data": "oops"})
    gone = alice.enqueue({"n": 1})
    with pytest.raises(MalformedMessageError):
        alice.read(100)
    alice.read(100)
    raw.xdel(stream, gone)
    for method in METHODS.values():
        with contextlib.suppress(MalformedMessageError):
            method(alice, message)
    make_idle(raw, stream, [bad], "alice")
    with pytest.raises(MalformedMessageError):
        bob.claim_stale(60_000)
    length = raw.xlen(stream)
    bob.ack_id(bad)
    alice.close()
    bob.close()

    assert raw.xlen(stream) == length
    assert sorted(row["name"] for row in raw.xinfo_consumers(stream, "billing")) == [b"alice", b"bob"]
    assert {"xtrim", "xgroup|delconsumer", "xgroup|destroy", "xgroup|setid", "del"} & set(commands_of()) == set()
    keys = {key.decode() for key in raw.scan_iter()}
    assert {key for key in keys if key != stream and ":once:" not in key} == set()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.spec("RS-005.11")
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("lost", ["group", "stream"])
def test_no_method_creates_a_lost_group_again(
    queue: RedisStreamsQueue, raw: RawRedis, stream: str, name: str, lost: str
) -> None:
    message = one_pending(queue)
    raw.delete(stream) if lost == "stream" else raw.xgroup_destroy(stream, "billing")

    outcome: object = None
    try:
        METHODS[name](queue, message)
    except QueueError as error:
        outcome = error

    assert isinstance(outcome, GroupMissingError) == (name in ASKING_THE_GROUP)
    assert not raw.exists(stream) or raw.xinfo_groups(stream) == []


@pytest.mark.spec("RS-005.11", "QC-011.2")
@pytest.mark.parametrize("recover", [False, True])
def test_a_run_whose_group_is_lost_ends_and_does_not_create_it(
    consumer: QueueConsumer, engine: Engine, raw: RawRedis, stream: str, *, recover: bool
) -> None:
    raw.xgroup_destroy(stream, "billing")

    with pytest.raises(GroupMissingError):
        consumer.run(handler=lambda msg, session: None, engine=engine, recover=recover)
    with pytest.raises(GroupMissingError):
        consumer.run_claim_stale(handler=lambda msg, session: None, engine=engine)

    assert raw.xinfo_groups(stream) == []


@pytest.mark.spec("RS-005.9", "CQ-006.8")
def test_a_group_that_is_there_keeps_its_place_and_what_is_pending(
    make_queue: MakeQueue, raw: RawRedis, stream: str, pending: PendingOf
) -> None:
    alice = make_queue("alice")
    first, second = alice.enqueue_many([{"n": 1}, {"n": 2}])
    alice.read(100)

    bob = make_queue("bob")

    assert raw.xinfo_groups(stream)[0]["last-delivered-id"].decode() == first
    assert pending() == {first: ("alice", 1)}
    assert [message.id for message in bob.read(100)] == [second]


@pytest.mark.spec("RS-008.1", "RS-005.10", "RS-005.27", "CQ-003.6", "QC-009.1", "QC-009.2", "QC-009.3")
@pytest.mark.parametrize("name", METHODS)
def test_a_refusal_by_the_server_is_a_queue_error_in_every_method(
    queue: RedisStreamsQueue, raw: RawRedis, stream: str, name: str
) -> None:
    message = one_pending(queue)
    raw.delete(stream)
    raw.set(stream, "not a stream")

    with pytest.raises(QueueError, match="WRONGTYPE") as caught:
        METHODS[name](queue, message)

    assert not caught.value.in_doubt
    assert (caught.value.stream, caught.value.group) == (stream, "billing")


@pytest.mark.spec("RS-005.3", "RS-005.16", "RS-008.2", "QC-009.6")
@pytest.mark.parametrize("name", METHODS)
def test_no_method_repeats_a_command_that_was_refused(
    queue: RedisStreamsQueue, raw: RawRedis, stream: str, name: str, commands_of: Commands
) -> None:
    """A method that succeeds shows nothing about retries."""
    message = one_pending(queue)
    raw.delete(stream)
    raw.set(stream, "not a stream")
    raw.config_resetstat()

    with pytest.raises(QueueError):
        METHODS[name](queue, message)

    refused = {
        key.removeprefix("cmdstat_"): numbers["calls"]
        for key, numbers in raw.info("commandstats").items()
        if numbers["failed_calls"] or numbers["rejected_calls"]
    }
    assert refused
    assert set(refused.values()) == {1}


# ---------------------------------------------------------------- the format, on every way in and out
@pytest.mark.spec("RS-003.1", "RS-003.2", "RS-003.3", "RS-003.4", "RS-005.14", "CQ-006.9")
def test_every_way_to_add_writes_one_field_of_utf8_json(queue: RedisStreamsQueue, raw: RawRedis, stream: str) -> None:
    payload = {"who": "Zoë", "nested": {"list": [1, None, True]}}
    ids = [
        queue.enqueue(payload),
        queue.enqueue(payload, idempotency_key="k"),
        *queue.enqueue_many([payload, payload]),
    ]

    stored = raw.xrange(stream)

    assert [entry_id.decode() for entry_id, _ in stored] == ids
    for _, fields in stored:
        assert list(fields) == [b"data"]
        assert json.loads(fields[b"data"].decode("utf-8")) == payload


MALFORMED: list[dict[Any, Any]] = [
    {"other": "{}"},
    {"data": "{}", "more": "x"},
    {"data": b'{"a":"\xff"}'},
    {"data": "secret-oops"},
    {"data": "[1]"},
    {"data": '{"a": NaN}'},
    {"data": '{"a": "%s"}' % ("x" * 2_000_000)},
]


@pytest.mark.spec("RS-003.1", "RS-003.2", "RS-003.3", "RS-003.5", "RS-003.6", "CQ-006.10")
@pytest.mark.parametrize("fields", MALFORMED, ids=["name", "fields", "utf-8", "json", "object", "nan", "size"])
def test_a_malformed_entry_is_refused_by_claiming_and_recovering_too(
    make_queue: MakeQueue, raw: RawRedis, stream: str, pending: PendingOf, fields: dict[Any, Any]
) -> None:
    alice, bob = make_queue("alice"), make_queue("bob")
    bad = raw.xadd(stream, fields).decode()
    with pytest.raises(MalformedMessageError):
        alice.read(100)

    with pytest.raises(MalformedMessageError) as recovering:
        alice.recover_own()
    make_idle(raw, stream, [bad], "alice")
    with pytest.raises(MalformedMessageError) as claiming:
        bob.claim_stale(60_000)

    assert recovering.value.message_id == claiming.value.message_id == bad
    assert "secret" not in str(recovering.value) + str(claiming.value)
    assert list(pending()) == [bad]


@pytest.mark.spec("CQ-006.14", "CQ-006.2", "RS-005.15")
@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}])
def test_ids_are_text_whatever_brought_them(
    make_queue: MakeQueue, connect: Connect, raw: RawRedis, stream: str, options: dict[str, Any]
) -> None:
    alice = make_queue("alice", client=connect(**options))
    ids = [alice.enqueue({"n": 1}), alice.enqueue({"n": 2}, idempotency_key="k"), *alice.enqueue_many([{"n": 3}])]
    read = alice.read(100, 3)
    recovered = alice.recover_own()
    make_idle(raw, stream, ids, "alice")
    bob = make_queue("bob", client=connect(**options))
    claimed = bob.claim_stale(60_000)

    for batch in (read, recovered, claimed):
        assert [message.id for message in batch] == ids
        assert {type(message.id) for message in batch} == {str}
        assert {(message.stream, message.group) for message in batch} == {(stream, "billing")}
        assert [message.payload for message in batch] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert bob.extend_many(claimed) == set(ids)


@pytest.mark.spec("RS-005.5", "QC-004.4", "RS-006.8", "CQ-006.16")
def test_recovering_and_claiming_take_no_more_than_was_asked_for(
    make_queue: MakeQueue, raw: RawRedis, stream: str, pending: PendingOf
) -> None:
    alice, bob = make_queue("alice"), make_queue("bob")
    ids = alice.enqueue_many([{"n": n} for n in range(5)])
    alice.read(100, 5)
    alice.recover_own(2)
    delivered = [deliveries for _, deliveries in pending().values()]
    make_idle(raw, stream, ids, "alice")
    bob.claim_stale(60_000, 1)

    assert delivered == [2, 2, 1, 1, 1]
    assert [owner for owner, _ in pending().values()].count("bob") == 1


# ---------------------------------------------------------------- concurrency
@pytest.mark.spec("RS-001.2", "RS-002.11", "CQ-001.9", "CQ-008.9")
def test_readers_and_claimers_at_the_same_moment_share_no_delivery(
    make_queue: MakeQueue, raw: RawRedis, stream: str
) -> None:
    """One after the other they could not collide: here all of them run."""
    producer = make_queue("producer")
    stale = producer.enqueue_many([{"n": n} for n in range(200)])
    producer.read(100, 200)
    make_idle(raw, stream, stale, "producer")
    new = producer.enqueue_many([{"n": n} for n in range(400)])
    queues = [make_queue(f"reader-{n}") for n in range(4)]
    got: list[str] = []
    start = threading.Barrier(4)

    def work(queue: RedisStreamsQueue) -> None:
        start.wait(30)
        while True:
            batch = [*queue.read(20, 3), *queue.claim_stale(60_000, 3)]
            if not batch:
                return
            got.extend(message.id for message in batch)

    threads = [threading.Thread(target=work, args=(queue,)) for queue in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(got) == sorted([*stale, *new])


# ---------------------------------------------------------------- acknowledging
@pytest.mark.spec("RS-005.26")
def test_acknowledging_by_id_what_is_not_pending_is_allowed(queue: RedisStreamsQueue, pending: PendingOf) -> None:
    waiting = queue.enqueue({"n": 0})
    queue.ack_id(waiting)
    queue.ack_id("1-1")
    (message,) = queue.read(100)
    assert list(pending()) == [message.id]
    queue.ack_id(message.id)
    queue.ack_id(message.id)

    assert pending() == {}


# ---------------------------------------------------------------- stopping
@pytest.mark.spec("QC-005.2", "QC-005.4", "QC-005.5", "RS-006.10", "RS-006.12", "CQ-006.38")
def test_after_stop_no_loop_reads_recovers_claims_or_acknowledges(
    make_consumer: MakeConsumer, engine: Engine, raw: RawRedis, stream: str, commands_of: Commands
) -> None:
    consumer = make_consumer()
    one_pending(consumer.queue)
    consumer.queue.enqueue({"n": 1})
    consumer.stop()
    raw.config_resetstat()

    def never(_msg: QueueMessage, _session: object) -> None:
        raise AssertionError("it was stopped")

    consumer.run(handler=never, engine=engine)
    consumer.run(handler=never, engine=engine, recover=True)
    consumer.run_claim_stale(handler=never, engine=engine, min_idle_ms=1)

    assert {"xreadgroup", "xack", "xclaim", "xautoclaim"} & set(commands_of()) == set()


@pytest.mark.spec("RS-006.9", "CQ-001.7", "CQ-001.13", "CQ-006.35", "QC-005.6")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop", ["next", "run", "recover", "run_claim_stale"])
def test_either_signal_ends_every_loop_and_close_restores_both_handlers(
    make_consumer: MakeConsumer, engine: Engine, number: signal.Signals, loop: str, commands_of: Commands
) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
    consumer = make_consumer(enable_signal_handlers=True)
    main = threading.get_ident()
    loops: dict[str, Callable[[], object]] = {
        "next": lambda: consumer.next(300_000),
        "run": lambda: consumer.run(handler=lambda msg, session: None, engine=engine),
        "recover": lambda: consumer.run(handler=lambda msg, session: None, engine=engine, recover=True),
        "run_claim_stale": lambda: consumer.run_claim_stale(handler=lambda msg, session: None, engine=engine),
    }

    def send() -> None:
        wait_until(lambda: {"xreadgroup", "xinfo|consumers"} & set(commands_of()))
        signal.pthread_kill(main, number)

    sender = threading.Thread(target=send)
    sender.start()
    started = time.monotonic()
    loops[loop]()
    sender.join()
    consumer.close()

    assert time.monotonic() - started < 90
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)] == before


# ---------------------------------------------------------------- metrics
COUNTERS = [
    "messages_read", "messages_ack", "messages_claimed", "messages_malformed", "messages_deleted", "ack_noop",
    "messages_enqueued", "messages_recovered",
]  # fmt: skip


def counted(stream: str) -> dict[str, float]:
    labels = {"stream": stream}
    found = {name: REGISTRY.get_sample_value(f"conquiet_queue_{name}_total", labels) or 0 for name in COUNTERS}
    found["latencies"] = REGISTRY.get_sample_value("conquiet_queue_read_latency_seconds_count", labels) or 0
    return found


@pytest.mark.spec("RS-007.5")
@pytest.mark.parametrize("name", METHODS)
def test_a_refused_command_counts_nothing_in_any_method(
    queue: RedisStreamsQueue, raw: RawRedis, stream: str, name: str
) -> None:
    message = one_pending(queue)
    raw.delete(stream)
    raw.set(stream, "not a stream")
    before = counted(stream)

    with pytest.raises(QueueError):
        METHODS[name](queue, message)

    assert counted(stream) == before


@pytest.mark.spec("RS-007.5")
@pytest.mark.parametrize("word", [b"XCLAIM", b"XINFO", b"XPENDING"])
def test_a_claim_that_breaks_at_any_step_counts_nothing(
    make_queue: MakeQueue,
    connect: Connect,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    raw: RawRedis,
    stream: str,
    word: bytes,
) -> None:
    proxy = fault_proxy(redis_url)
    alice, bob = make_queue("alice"), make_queue("bob", client=connect(proxy.url_for(redis_url)))
    message = one_pending(alice)
    make_idle(raw, stream, [message.id], "alice")
    before = counted(stream)
    proxy.drop_next_reply(word)

    with pytest.raises(QueueError):
        bob.claim_stale(60_000)

    assert counted(stream) == before


@pytest.mark.spec("RS-007.6")
def test_a_broken_registry_fails_no_method(
    make_queue: MakeQueue, add_raw: Callable[..., str], raw: RawRedis, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: str) -> Any:
        raise RuntimeError("no metrics today")

    monkeypatch.setattr("conquiet.queue.metrics._metrics", broken)
    alice, bob = make_queue("alice"), make_queue("bob")
    first, gone = alice.enqueue_many([{"n": 1}, {"n": 2}])
    bad = add_raw({"data": "oops"})
    batch = alice.read(100, 3)
    make_idle(raw, stream, [first, gone, bad], "alice")
    raw.xdel(stream, gone)

    claimed = bob.claim_stale(60_000)
    recovered = bob.recover_own()
    bob.ack(claimed[0])
    bob.ack(claimed[0])

    assert [message.id for message in batch] == [first, gone]
    assert [message.id for message in claimed] == [message.id for message in recovered] == [first]
    assert claimed.deleted == (gone,)
    assert [error.message_id for error in claimed.malformed] == [bad]


# ---------------------------------------------------------------- without the database
WITHOUT_DATABASE = """
import importlib.abc, sys
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"sqlalchemy", "pymysql", "pika", "nacl", "typer"}:
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Hide())
import redis
from conquiet import QueueConfig, QueueConsumer
url, stream = sys.argv[1:]
with QueueConsumer(redis.Redis.from_url(url), QueueConfig(stream, "billing", "alice")) as consumer:
    consumer.queue.enqueue({"n": 1}, idempotency_key="k")
    consumer.queue.enqueue_many([{"n": 2}, {"n": 3}])
    first = consumer.next()
    consumer.next_batch(2)
    consumer.extend(first)
    consumer.ack(first)
    consumer.backlog()
    print(len(consumer.recover_own()), len(consumer.claim_stale(3_600_000)))
print([name for name in sys.modules if name.startswith("conquiet.db")])
"""


@pytest.mark.spec("CQ-000.2", "RS-000.2")
def test_the_queue_works_without_what_the_database_needs(redis_url: str, stream: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DATABASE, redis_url, stream], capture_output=True, text=True, check=False
    )

    assert done.stdout.splitlines() == ["2 0", "[]"], done.stderr


# ---------------------------------------------------------------- what run() does with the database
@pytest.mark.spec("CQ-006.1")
def test_reading_and_acknowledging_write_nothing_to_the_database(consumer: QueueConsumer, engine: Engine) -> None:
    consumer.queue.enqueue({"n": 1})

    consumer.run(handler=lambda msg, session: consumer.stop(), engine=engine, recover=True)

    with engine.connect() as connection:
        assert connection.execute(text("SHOW TABLES")).all() == []
