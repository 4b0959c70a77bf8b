"""Steps that a QueueConsumer leaves to its caller, checked over a whole life and in every loop."""

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Engine, create_engine
from tests.integration.queue.conftest import MakeConsumer
from tests.redis_clients import RawRedis

from conquiet.errors import GroupMissingError, MalformedMessageError
from conquiet.queue import QueueConsumer, QueueMessage

PendingOf = Callable[..., dict[str, tuple[str, int]]]
Commands = Callable[[], dict[str, int]]

QUEUE_METRICS = {
    "messages_read", "messages_ack", "messages_claimed", "messages_malformed", "messages_deleted", "ack_noop",
    "messages_enqueued", "messages_recovered", "read_latency_seconds", "read_latency_seconds_bucket",
    "read_latency_seconds_count", "read_latency_seconds_sum",
}  # fmt: skip


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    yield made
    made.dispose()


@pytest.fixture
def started_threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all threads that are started from now on, including threads that end immediately."""
    names: list[str] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        names.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    return names


def make_idle(raw: RawRedis, stream: str, ids: list[str], consumer: str) -> None:
    raw.xclaim(stream, "billing", consumer, 0, ids, idle=120_000, justid=True)


def run_until(consumer: QueueConsumer, engine: Engine, count: int, way: str) -> None:
    """Run until this many messages were handled."""
    left = count

    def single(_msg: QueueMessage, _session: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            consumer.stop()

    def many(msgs: list[QueueMessage], session: object) -> None:
        for msg in msgs:
            single(msg, session)

    match way:
        case "batches":
            consumer.run_batches(handler=many, engine=engine, batch=2, within_s=0.01)
        case "claim":
            consumer.run_claim_stale(handler=single, engine=engine, min_idle_ms=60_000)
        case _:
            consumer.run(handler=single, engine=engine, recover=way == "recover")


@pytest.mark.spec(
    "QC-002.4", "QC-004.9", "QC-012.1", "QC-012.2", "QC-012.7", "RS-001.3", "RS-001.7", "RS-001.8", "RS-005.6",
)  # fmt: skip
def test_a_whole_life_starts_no_thread_and_leaves_nothing_but_the_stream(
    make_consumer: MakeConsumer,
    engine: Engine,
    started_threads: list[str],
    raw: RawRedis,
    stream: str,
    commands_of: Commands,
) -> None:
    """From before the constructor until after ``close()``, with everything that a consumer can do between."""
    for way in ("run", "recover", "batches", "claim"):
        consumer = make_consumer("alice")
        ids = consumer.queue.enqueue_many([{"n": n} for n in range(4)])
        first = consumer.next()
        assert first is not None
        consumer.ack(first)
        consumer.ack_id(first.id)
        (second,) = consumer.next_batch(1)
        assert consumer.extend(second)
        make_idle(raw, stream, [second.id], "alice")
        consumer.ack(consumer.claim_stale()[0])
        (third,) = itertools.islice(consumer.iter_messages(), 1)
        assert len(consumer.recover_own()) == 1
        assert consumer.backlog().pending == 1
        if way == "recover":
            consumer.queue.read(100)
        elif way == "claim":
            make_idle(raw, stream, [third.id], "alice")
        run_until(consumer, engine, 2 if way == "recover" else 1, way)
        if way in {"run", "batches"}:
            consumer.ack(third)
        elif way == "claim":
            consumer.queue.ack(consumer.queue.read(100)[0])
        assert not consumer.health().ready
        consumer.close()
        assert raw.xpending(stream, "billing")["pending"] == 0
        assert raw.xrange(stream)[-1][0].decode() == ids[-1]

    assert started_threads == []
    assert raw.keys() == [stream.encode()]
    assert raw.xlen(stream) == 16
    assert [row["name"] for row in raw.xinfo_consumers(stream, "billing")] == [b"alice"]
    refused = {"xtrim", "xdel", "del", "set", "setex", "hset", "sadd", "publish", "ping", "client|kill"}
    assert not refused & set(commands_of())
    assert not [name for name in commands_of() if name.startswith("xgroup|") and name != "xgroup|create"]
    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    names = {sample.name for sample in samples if sample.labels.get("stream") == stream}
    assert {
        name.removeprefix("conquiet_queue_").removesuffix("_created").removesuffix("_total") for name in names
    } <= QUEUE_METRICS


@pytest.mark.spec(
    "QC-002.3", "QC-004.7", "QC-010.1", "QC-010.3", "QC-010.4", "QC-010.5", "QC-010.12", "RS-005.38", "RS-005.40",
)  # fmt: skip
@pytest.mark.parametrize("way", ["next", "long next", "next_batch", "iter_messages", "run", "recover", "batches"])
def test_an_idle_loop_leaves_stale_entries_alone(
    make_consumer: MakeConsumer,
    engine: Engine,
    raw: RawRedis,
    stream: str,
    pending: PendingOf,
    commands_of: Commands,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """Claiming would cost nothing on an idle stream. A stale entry still stays with its owner."""
    monkeypatch.setattr("conquiet.queue.consumer.LONGEST_SLICE_MS", 30)
    bob, alice = make_consumer("bob"), make_consumer("alice", block_ms=20, claim_idle_ms=1)
    stale = bob.queue.enqueue({"stale": True})
    bob.next()
    make_idle(raw, stream, [stale], "bob")
    raw.config_resetstat()
    empty = 0
    read: Any = alice.queue.read

    def noted(block_ms: int, count: int = 1) -> Any:
        nonlocal empty
        found = read(block_ms, count)
        empty += not found
        if empty == 3:
            alice.stop()
        return found

    alice.queue.read = noted  # type: ignore[method-assign]
    match way:
        case "next":
            assert [alice.next() for _ in range(3)] == [None] * 3
        case "long next":
            assert alice.next(block_ms=100) is None
        case "next_batch":
            assert [alice.next_batch(5) for _ in range(3)] == [[]] * 3
        case "iter_messages":
            assert list(alice.iter_messages()) == []
        case _:
            run_until(alice, engine, 1, way)

    sent = set(commands_of())
    assert not sent & {"xclaim", "xautoclaim", "xinfo|consumers"}
    assert commands_of().get("xpending", 0) <= (way == "run")  # own pending messages are counted once, at the start
    assert pending() == {stale: ("bob", 1)}


@pytest.mark.spec("QC-001.1", "QC-002.5", "QC-013.1", "RS-001.5", "RS-002.2")
def test_a_consumer_remembers_no_message_that_it_has_delivered(
    make_consumer: MakeConsumer, engine: Engine, raw: RawRedis, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inbox or the handler prevents a second effect; the queue returns a message as often as it is read."""
    consumer = make_consumer()
    (entry,) = consumer.queue.enqueue_many([{"n": 1}])
    first = consumer.next()
    assert first is not None
    got = [first, *consumer.recover_own()]
    for _ in range(2):
        make_idle(raw, stream, [entry], "alice")
        got += consumer.claim_stale()
    make_idle(raw, stream, [entry], "alice")
    handled: list[QueueMessage] = []

    def refuse(msg: QueueMessage, _session: object) -> None:
        handled.append(msg)
        raise LookupError

    for _ in range(2):
        with pytest.raises(LookupError):
            consumer.run(handler=refuse, engine=engine, recover=True)
    make_idle(raw, stream, [entry], "alice")
    monkeypatch.setattr(consumer, "sleep", lambda _: consumer.stop())  # ends a loop that finds nothing
    with pytest.raises(LookupError):
        consumer.run_claim_stale(handler=refuse, engine=engine)

    assert [msg.id for msg in [*got, *handled]] == [entry] * 7
    assert [msg.delivery_count for msg in [*got, *handled]] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.spec("QC-002.5", "QC-004.8", "QC-009.8")
def test_no_call_depends_on_what_came_before_it(
    make_consumer: MakeConsumer, engine: Engine, raw: RawRedis, stream: str, add_raw: Callable[..., str]
) -> None:
    """A message that is not acknowledged, an error, a malformed entry, a lost group, a run that failed: no state."""
    consumer = make_consumer()

    def refuse(_msg: object, _session: object) -> None:
        raise LookupError

    consumer.queue.enqueue_many([{"n": n} for n in range(6)])
    assert consumer.claim_stale() == consumer.recover_own() == []
    kept = [consumer.next(), consumer.next()]
    add_raw({"data": "oops"})
    runs: list[Callable[[], None]] = [
        lambda: consumer.run(handler=refuse, engine=engine),
        lambda: consumer.run_batches(handler=refuse, engine=engine, batch=1),
        lambda: consumer.run(handler=refuse, engine=engine, recover=True),
    ]
    for run in runs:
        with pytest.raises(LookupError):
            run()
    assert len(list(itertools.islice(consumer.iter_messages(), 1))) == 1
    assert len(list(itertools.islice(consumer.iter_messages(), 1))) == 1
    with pytest.raises(MalformedMessageError):
        consumer.next()
    raw.xgroup_destroy(stream, "billing")
    for _ in range(2):
        with pytest.raises(GroupMissingError):
            consumer.next()
    raw.xgroup_create(stream, "billing", "0")

    again = consumer.next()

    assert again == kept[0]
    consumer.ack(again)  # type: ignore[arg-type]


@pytest.mark.spec("QC-006.6", "RS-006.18", "QC-005.3")
@pytest.mark.parametrize("way", ["next", "long next", "next_batch", "long batch", "iter_messages", "run", "batches"])
def test_a_message_that_was_read_as_the_stop_came_is_delivered(
    make_consumer: MakeConsumer, engine: Engine, pending: PendingOf, way: str
) -> None:
    """The stop comes between the command and its reply. A message that is not returned then stays pending."""
    consumer = make_consumer()
    (entry,) = consumer.queue.enqueue_many([{"n": 1}])
    read: Any = consumer.queue.read

    def read_and_stop(block_ms: int, count: int = 1) -> Any:
        found = read(block_ms, count)
        consumer.stop()
        return found

    consumer.queue.read = read_and_stop  # type: ignore[method-assign]
    got: list[Any] = []
    match way:
        case "next" | "long next":
            got.append(consumer.next(50 if way == "next" else 5_000))
        case "next_batch" | "long batch":
            got += consumer.next_batch(5, block_ms=50 if way == "next_batch" else 5_000)
        case "iter_messages":
            got += consumer.iter_messages()
        case "run":
            consumer.run(handler=lambda msg, session: got.append(msg), engine=engine)
        case _:
            consumer.run_batches(handler=lambda msgs, session: got.extend(msgs), engine=engine)

    assert [msg.id for msg in got] == [entry]
    assert list(pending()) == ([] if way in {"run", "batches"} else [entry])


@pytest.mark.spec("QC-004.5", "RS-006.27")
@pytest.mark.parametrize("way", ["by hand", "run", "recover", "claim", "batches"])
def test_however_long_a_message_takes_it_can_be_acknowledged(
    make_consumer: MakeConsumer, engine: Engine, raw: RawRedis, stream: str, pending: PendingOf, way: str
) -> None:
    """Longer than the idle time after which others may claim it, by both clocks: nothing ends or refuses it."""
    consumer = make_consumer(claim_idle_ms=5)
    (entry,) = consumer.queue.enqueue_many([{"n": 1}])
    if way in {"recover", "claim"}:
        consumer.next()
        make_idle(raw, stream, [entry], "alice")

    def slow(_given: object, _session: object) -> None:
        time.sleep(0.02)
        make_idle(raw, stream, [entry], "alice")
        consumer.stop()

    match way:
        case "by hand":
            message = consumer.next()
            assert message is not None
            slow(message, None)
            consumer.ack(message)
        case "batches":
            consumer.run_batches(handler=slow, engine=engine, batch=1)
        case "claim":
            consumer.run_claim_stale(handler=slow, engine=engine)
        case _:
            consumer.run(handler=slow, engine=engine, recover=way == "recover")

    assert pending() == {}


@pytest.mark.spec("QC-003.4")
def test_the_recovery_loop_sleeps_after_each_claim_that_found_nothing(
    make_consumer: MakeConsumer, engine: Engine, commands_of: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make_consumer()
    slept: list[float] = []

    def sleep(duration_s: float) -> None:
        slept.append(duration_s)
        if len(slept) == 3 or len(slept) > commands_of().get("xinfo|consumers", 0):
            consumer.stop()

    monkeypatch.setattr(consumer, "sleep", sleep)
    stopping = threading.Timer(30, consumer.stop)  # ends a loop that does not sleep
    stopping.start()
    consumer.run_claim_stale(handler=lambda msg, session: None, engine=engine, interval_s=7.0)
    stopping.cancel()
    stopping.join()

    assert slept == [7.0] * 3
    assert commands_of()["xinfo|consumers"] == 3


WITHOUT_A_DATABASE = """
import importlib.abc, sys
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {'sqlalchemy', 'pymysql', 'psycopg', 'pika', 'nacl', 'typer'}:
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Hide())
import redis
from conquiet.config import QueueConfig
from conquiet.errors import MalformedMessageError
from conquiet.queue import QueueConsumer
url, stream = sys.argv[1:]
client = redis.Redis.from_url(url)
with QueueConsumer(client, QueueConfig(stream, 'billing', 'alice', claim_idle_ms=1)) as consumer:
    consumer.queue.enqueue({'n': 1}, idempotency_key='k')
    consumer.queue.enqueue_many([{'n': 2}, {'n': 3}])
    consumer.ack(consumer.next())
    (message,) = consumer.next_batch(1)
    consumer.extend(message)
    consumer.recover_own()
    client.xclaim(stream, 'billing', 'alice', 0, [message.id], idle=60_000, justid=True)
    consumer.queue.ack_many(consumer.claim_stale())
    client.xadd(stream, {'data': 'oops'})
    for message in consumer.iter_messages():
        consumer.ack(message)
        consumer.backlog()
        break
    try:
        consumer.next()
    except MalformedMessageError as error:
        consumer.ack_id(error.message_id)
    consumer.health()
    consumer.stop()
print('conquiet.db' in sys.modules)
"""


@pytest.mark.spec("RS-000.2", "QC-001.17")
def test_every_method_but_the_runner_works_without_a_database(redis_url: str, raw: RawRedis, stream: str) -> None:
    """An import inside a method is found only by calling it."""
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_DATABASE, redis_url, stream], capture_output=True, text=True, check=False
    )

    assert ran.stdout.split() == ["False"], ran.stderr
    assert raw.xpending(stream, "billing")["pending"] == 0
