"""``run(recover=True)`` and ``QueueWorker``: failed messages are handled after a restart, an outage costs nothing."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from sqlalchemy import Engine, create_engine, text
from tests.integration.queue.conftest import Connect
from tests.redis_clients import RawRedis

from conquiet.core.lifecycle import Health, Status
from conquiet.db import DbSession
from conquiet.errors import CommitUnknownError, ConfigurationError, DatabaseUnavailableError, LifecycleError, QueueError
from conquiet.queue import QueueConsumer, QueueMessage, QueueWorker
from conquiet.testing import FaultProxy, RedisServer, wait_until
from conquiet.transactional import Inbox, create_tables

if TYPE_CHECKING:
    from conquiet.core.lifecycle import Worker

PendingOf = Callable[..., dict[str, tuple[str, int]]]
Effects = Callable[[], list[str]]


class MakeConsumer(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> QueueConsumer: ...


@pytest.fixture
def engine(db_url: str) -> Iterator[Engine]:
    made = create_engine(db_url)
    create_tables(made)
    with made.begin() as conn:
        conn.execute(text("CREATE TABLE effects (message_id VARCHAR(40) NOT NULL)"))
    yield made
    made.dispose()


@pytest.fixture
def effects(engine: Engine) -> Effects:
    def ask() -> list[str]:
        with engine.connect() as conn:
            return list(conn.execute(text("SELECT message_id FROM effects ORDER BY message_id")).scalars())

    return ask


def record(msg: QueueMessage, session: DbSession) -> None:
    session.execute("INSERT INTO effects VALUES (:id)", {"id": msg.id})


class OutOfOrderError(Exception):
    """The handler's own."""


def refuse(msg: QueueMessage, session: DbSession) -> None:
    record(msg, session)
    raise OutOfOrderError


class Until:
    """A handler that records, and stops its consumer after this many messages."""

    def __init__(self, consumer: QueueConsumer, last: int) -> None:
        self.seen: list[str] = []
        self.deliveries: list[int] = []
        self._consumer, self._last = consumer, last

    def __call__(self, msg: QueueMessage, session: DbSession) -> None:
        self.seen.append(msg.id)
        self.deliveries.append(msg.delivery_count)
        record(msg, session)
        if len(self.seen) == self._last:
            self._consumer.stop()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def fail_once(consumer: QueueConsumer, engine: Engine) -> None:
    with pytest.raises(OutOfOrderError):
        consumer.run(handler=refuse, engine=engine)


def test_a_message_that_failed_is_handled_first_after_a_restart(
    make_consumer: MakeConsumer, engine: Engine, effects: Effects, pending: PendingOf
) -> None:
    first = make_consumer()
    failed = first.queue.enqueue({"n": 1}, idempotency_key="payment-1")
    fail_once(first, engine)
    again = make_consumer()
    assert again.queue.enqueue({"n": 1}, idempotency_key="payment-1") == failed  # so nothing else brings it back
    new = again.queue.enqueue({"n": 2})
    handler = Until(again, last=2)

    again.run(handler=handler, engine=engine, inbox=Inbox(), recover=True)

    assert handler.seen == [failed, new]
    assert handler.deliveries == [2, 1]
    assert effects() == [failed, new]
    assert pending() == {}


def test_own_pending_messages_are_handled_one_by_one_before_new_ones(
    make_consumer: MakeConsumer, engine: Engine, pending: PendingOf, raw: RawRedis, stream: str
) -> None:
    """More than one page of them; one deleted from the stream; another consumer's are left alone."""
    consumer, bob = make_consumer(), make_consumer("bob")
    ids = consumer.queue.enqueue_many([{"n": n} for n in range(8)])
    consumer.queue.read(100, 6)
    (theirs,) = bob.queue.read(100)
    raw.xdel(stream, ids[2])
    handler = Until(consumer, last=6)
    held: list[int] = []

    def handle(msg: QueueMessage, session: DbSession) -> None:
        held.append(sum(deliveries > 1 for _, deliveries in pending().values()))
        handler(msg, session)

    consumer.run(handler=handle, engine=engine, recover=True)

    assert handler.seen == [*ids[:2], *ids[3:6], ids[7]]
    assert held == [1] * 5 + [0]
    assert pending() == {theirs.id: ("bob", 1)}


def test_a_recovered_message_that_fails_again_leaves_run_and_stays_pending(
    make_consumer: MakeConsumer, engine: Engine, effects: Effects, pending: PendingOf
) -> None:
    consumer = make_consumer()
    failed, waiting = consumer.queue.enqueue_many([{"n": 1}, {"n": 2}])
    fail_once(consumer, engine)

    with pytest.raises(OutOfOrderError):
        consumer.run(handler=refuse, engine=engine, recover=True)

    assert pending() == {failed: ("alice", 2)}
    assert waiting not in pending()
    assert effects() == []


def test_without_recover_a_start_says_how_many_messages_it_leaves_pending(
    make_consumer: MakeConsumer,
    engine: Engine,
    pending: PendingOf,
    caplog: pytest.LogCaptureFixture,
    commands_of: Callable[[], dict[str, int]],
) -> None:
    consumer, bob = make_consumer(), make_consumer("bob")
    left = consumer.queue.enqueue_many([{"n": 1}, {"n": 2}, {"n": 3}])[:2]
    consumer.queue.read(100, 2)
    handler = Until(consumer, last=1)

    consumer.run(handler=handler, engine=engine)
    said = warnings_of(caplog)
    bob.stop()
    bob.run(handler=handler, engine=engine)

    assert len(said) == len(warnings_of(caplog)) == 1
    assert said[0].startswith("2 messages are pending under this consumer's name")
    assert "run(recover=True)" in said[0]
    assert list(pending()) == left
    assert {"xclaim", "xautoclaim"} & set(commands_of()) == set()
    assert commands_of()["xpending"] <= 3  # one for each start, and the test's own


def test_a_foreign_consumer_name_that_is_not_utf_8_prevents_no_run(
    make_consumer: MakeConsumer, engine: Engine, raw: RawRedis, stream: str
) -> None:
    consumer = make_consumer()
    consumer.queue.enqueue_many([{"n": 1}, {"n": 2}])
    raw.xreadgroup("billing", b"\xff\xfe", {stream: ">"}, count=1)
    handler = Until(consumer, last=1)

    consumer.run(handler=handler, engine=engine)

    assert consumer.health().handled == 1


def test_a_start_without_the_right_to_look_reads_all_the_same(
    private_redis: Callable[..., RedisServer], connect: Connect, make_consumer: MakeConsumer, engine: Engine
) -> None:
    server = private_redis()
    connect(server.url).acl_setuser("app", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-xpending"])
    consumer = make_consumer(client=connect(server.url, username="app", password="-"))
    message_id = consumer.queue.enqueue({"n": 1})
    handler = Until(consumer, last=1)

    consumer.run(handler=handler, engine=engine)

    assert handler.seen == [message_id]


def test_a_malformed_entry_of_before_does_not_stop_each_start(
    make_consumer: MakeConsumer, engine: Engine, add_raw: Callable[..., str], pending: PendingOf
) -> None:
    """Raised once, when it was read. Messages behind it must not wait until it is set aside."""
    consumer = make_consumer()
    bad = add_raw({"data": "oops"})
    good = consumer.queue.enqueue({"n": 1})
    consumer.queue.read(100, 2)
    handler = Until(consumer, last=1)
    put_aside: list[str | None] = []

    consumer.run(handler=handler, engine=engine, recover=True)
    again = make_consumer()
    again.queue.enqueue({"n": 2})
    again.run(
        handler=Until(again, last=1),
        engine=engine,
        recover=True,
        on_malformed=lambda error: put_aside.append(error.message_id),
    )

    assert handler.seen == [good]
    assert put_aside == [bad]
    assert list(pending()) == [bad]


class Flaky:
    """A handler with an unavailable database for its first attempts."""

    def __init__(self, consumer: QueueConsumer, failures: list[Exception]) -> None:
        self.attempts: list[str] = []
        self._consumer, self._failures = consumer, failures

    def __call__(self, msg: QueueMessage, session: DbSession) -> None:
        self.attempts.append(msg.id)
        record(msg, session)
        if self._failures:
            raise self._failures.pop(0)
        self._consumer.stop()


def test_an_outage_pauses_a_recovering_run_and_charges_the_message_nothing(
    make_consumer: MakeConsumer,
    engine: Engine,
    effects: Effects,
    pending: PendingOf,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "conquiet.queue.outage")
    consumer = make_consumer()
    ids = consumer.queue.enqueue_many([{"n": 1}, {"n": 2}])
    counts: list[int] = []
    handler = Flaky(consumer, [DatabaseUnavailableError("away")] * 3)

    def handle(msg: QueueMessage, session: DbSession) -> None:
        counts.append(pending()[msg.id][1])
        handler(msg, session)

    consumer.run(handler=handle, engine=engine, recover=True)

    assert handler.attempts == ids[:1] * 4
    assert counts == [1] * 4
    assert effects() == ids[:1]
    assert pending() == {}
    said = [one for one in caplog.records if one.name == "conquiet.queue.outage"]
    assert [one.levelname for one in said] == ["WARNING", "INFO"]


def test_an_outage_leaves_a_run_without_recover_at_once(
    make_consumer: MakeConsumer, engine: Engine, effects: Effects, pending: PendingOf
) -> None:
    consumer = make_consumer()
    (message_id,) = consumer.queue.enqueue_many([{"n": 1}])
    handler = Flaky(consumer, [DatabaseUnavailableError("away")])

    with pytest.raises(DatabaseUnavailableError):
        consumer.run(handler=handler, engine=engine)

    assert handler.attempts == [message_id]
    assert pending() == {message_id: ("alice", 1)}
    assert effects() == []


def test_a_retried_commit_of_unknown_outcome_is_one_effect_with_the_inbox(
    make_consumer: MakeConsumer,
    db_url: str,
    engine: Engine,
    effects: Effects,
    fault_proxy: Callable[[str], FaultProxy],
    pending: PendingOf,
) -> None:
    proxy = fault_proxy(db_url)
    far = create_engine(proxy.url_for(db_url), connect_args={"ssl_disabled": True})
    consumer = make_consumer(block_ms=50)
    message_id = consumer.queue.enqueue({"n": 1})
    attempts: list[str] = []

    def lose_the_reply_once(msg: QueueMessage, session: DbSession) -> None:
        attempts.append(msg.id)
        record(msg, session)
        if len(attempts) == 1:
            proxy.drop_next_reply(b"COMMIT")

    running = threading.Thread(
        target=consumer.run,
        kwargs={"handler": lose_the_reply_once, "engine": far, "inbox": Inbox(), "recover": True},
    )
    running.start()
    wait_until(lambda: pending() == {} and bool(attempts))
    consumer.stop()
    running.join(30)
    far.dispose()

    assert not running.is_alive()
    assert effects() == [message_id]


def test_a_message_claimed_during_the_outage_is_left_to_its_owner(
    make_consumer: MakeConsumer, engine: Engine, effects: Effects, pending: PendingOf, raw: RawRedis, stream: str
) -> None:
    consumer = make_consumer()
    claimed, other = consumer.queue.enqueue_many([{"n": 1}, {"n": 2}])
    seen: list[str] = []

    def handle(msg: QueueMessage, session: DbSession) -> None:
        seen.append(msg.id)
        if msg.id == claimed:
            raw.xclaim(stream, "billing", "bob", 0, [claimed], justid=True)
            raise DatabaseUnavailableError("away")
        record(msg, session)
        consumer.stop()

    consumer.run(handler=handle, engine=engine, recover=True)

    assert seen == [claimed, other]
    assert effects() == [other]
    assert pending() == {claimed: ("bob", 1)}


def test_a_pause_keeps_the_message_from_being_claimed(
    make_consumer: MakeConsumer, engine: Engine, raw: RawRedis, stream: str
) -> None:
    """In an outage of any length: the pauses are shorter than ``claim_idle_ms``, and each renews the message."""
    consumer = make_consumer(claim_idle_ms=600)
    consumer.queue.enqueue({"n": 1})
    idle_ms: list[int] = []
    handler = Flaky(consumer, [DatabaseUnavailableError("away")] * 12)

    def handle(msg: QueueMessage, session: DbSession) -> None:
        idle_ms.append(raw.xpending_range(stream, "billing", "-", "+", 1)[0]["time_since_delivered"])
        handler(msg, session)

    began = time.monotonic()
    consumer.run(handler=handle, engine=engine, recover=True)

    assert time.monotonic() - began > 1.5
    assert max(idle_ms) < 600


def test_a_stop_during_an_outage_ends_the_run_with_the_message_pending(
    make_consumer: MakeConsumer, engine: Engine, pending: PendingOf
) -> None:
    consumer = make_consumer()
    message_id = consumer.queue.enqueue({"n": 1})
    tried = threading.Event()

    def handle(_msg: QueueMessage, _session: DbSession) -> None:
        tried.set()
        raise CommitUnknownError("away")

    running = threading.Thread(target=consumer.run, kwargs={"handler": handle, "engine": engine, "recover": True})
    running.start()
    assert tried.wait(30)
    consumer.stop()
    running.join(10)

    assert not running.is_alive()
    assert pending() == {message_id: ("alice", 1)}


def test_a_redis_failure_during_recovery_leaves_run(
    make_consumer: MakeConsumer,
    connect: Connect,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    engine: Engine,
) -> None:
    proxy = fault_proxy(redis_url)
    consumer = make_consumer(client=connect(proxy.url_for(redis_url)))
    proxy.drop_next_request(b"XREADGROUP")

    with pytest.raises(QueueError):
        consumer.run(handler=record, engine=engine, recover=True)


# ---------------------------------------------------------------- the worker
def test_a_worker_runs_recovers_and_reports_its_health(
    make_consumer: MakeConsumer, engine: Engine, effects: Effects, pending: PendingOf
) -> None:
    first = make_consumer()
    failed = first.queue.enqueue({"n": 1})
    fail_once(first, engine)
    consumer = make_consumer(block_ms=100)
    worker = QueueWorker(consumer, handler=record, engine=engine, inbox=Inbox())
    assert (worker.health().ready, worker.health().reason) == (False, "not started")
    running = threading.Thread(target=worker.run)

    running.start()
    wait_until(lambda: effects() == [failed] and pending() == {})
    assert (worker.health().ready, worker.health().reason) == (True, "")
    worker.stop()
    running.join(10)

    assert not running.is_alive()
    assert worker.health() == consumer.health() == Health(status=Status.STOPPED, handled=1)
    with pytest.raises(LifecycleError):
        worker.run()
    worker.close()
    with pytest.raises(LifecycleError):
        consumer.queue.enqueue({"n": 2})


def test_a_worker_in_an_outage_is_running_and_not_ready(make_consumer: MakeConsumer, engine: Engine) -> None:
    consumer = make_consumer(block_ms=100)
    consumer.queue.enqueue({"n": 1})
    back = threading.Event()

    def handle(_msg: QueueMessage, _session: DbSession) -> None:
        if not back.is_set():
            raise DatabaseUnavailableError("away")

    with QueueWorker(consumer, handler=handle, engine=engine) as worker:
        running = threading.Thread(target=worker.run)
        running.start()
        wait_until(lambda: worker.health().reason.startswith("paused"))
        away = worker.health()
        back.set()
        wait_until(lambda: worker.health().ready)
        worker.stop()
        running.join(10)

    assert not away.ready
    assert away.reason.startswith("paused")
    assert not running.is_alive()


def test_a_worker_without_recover_leaves_what_failed_and_raises_an_outage(
    make_consumer: MakeConsumer, engine: Engine, pending: PendingOf
) -> None:
    consumer = make_consumer()
    message_id = consumer.queue.enqueue({"n": 1})
    handler = Flaky(consumer, [DatabaseUnavailableError("away")])
    worker = QueueWorker(consumer, handler=handler, engine=engine, recover=False)

    with pytest.raises(DatabaseUnavailableError):
        worker.run()

    assert worker.health().status is Status.STOPPED
    assert list(pending()) == [message_id]


def test_an_outage_of_an_earlier_run_does_not_pause_the_next(make_consumer: MakeConsumer, engine: Engine) -> None:
    consumer = make_consumer()
    consumer.queue.enqueue_many([{"n": 1}, {"n": 2}])
    reasons: list[str] = []

    def look(msgs: list[QueueMessage], session: DbSession) -> None:
        reasons.append(consumer.health().reason)
        consumer.stop()

    with pytest.raises(ValueError, match="twice"):
        consumer.run(
            handler=Flaky(consumer, [DatabaseUnavailableError("away"), ValueError("twice")]),
            engine=engine,
            recover=True,
        )
    consumer.run_batches(handler=look, engine=engine)

    assert reasons == [""]


async def put_aside(error: Exception) -> None:
    raise AssertionError(error)


def test_a_worker_refuses_at_once_what_cannot_work(make_consumer: MakeConsumer, engine: Engine) -> None:
    consumer = make_consumer()
    nothing: Any = object()
    mistakes: list[dict[str, Any]] = [
        {"consumer": nothing, "handler": record, "engine": engine},
        {"consumer": consumer, "handler": nothing, "engine": engine},
        {"consumer": consumer, "handler": record, "engine": nothing},
        {"consumer": consumer, "handler": record, "engine": engine, "inbox": nothing},
        {"consumer": consumer, "handler": record, "engine": engine, "on_malformed": nothing},
        {"consumer": consumer, "handler": record, "engine": engine, "on_malformed": put_aside},
        {"consumer": consumer, "handler": record, "engine": engine, "on_malformed": lambda: None},
    ]

    for wrong in mistakes:
        with pytest.raises(ConfigurationError):
            QueueWorker(wrong.pop("consumer"), **wrong)


def test_a_worker_satisfies_the_worker_protocol(make_consumer: MakeConsumer, engine: Engine) -> None:
    worker = QueueWorker(make_consumer(), handler=record, engine=engine)
    as_any_worker: Worker = worker

    as_any_worker.stop()
    with pytest.raises(LifecycleError):
        as_any_worker.run()

    assert as_any_worker.abandoned == 0
    assert worker.name == worker.consumer.config.consumer_name
    assert not as_any_worker.health().ready
    as_any_worker.close()
    as_any_worker.close()
