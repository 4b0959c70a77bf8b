"""QueueConsumer.run and run_claim_stale with a real Redis and a real database. Seed 000 §1 and §11."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Protocol, Self

import pytest
from sqlalchemy import Engine, create_engine, text
from tests.integration.queue.conftest import Connect
from tests.redis_clients import RawRedis

from conquiet.db import DbSession
from conquiet.db import session as session_module
from conquiet.errors import (
    CommitUnknownError,
    ConfigurationError,
    DbWriteError,
    LifecycleError,
    MalformedMessageError,
    QueueError,
)
from conquiet.queue import QueueConsumer, QueueMessage
from conquiet.testing import FaultProxy, wait_until
from conquiet.transactional import Inbox

PendingOf = Callable[..., dict[str, tuple[str, int]]]
Commands = Callable[[], dict[str, int]]


class MakeConsumer(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> QueueConsumer: ...


@pytest.fixture
def engine(db_url: str) -> Iterator[Engine]:
    made = create_engine(db_url)
    with made.begin() as conn:
        conn.execute(text("CREATE TABLE effects (message_id VARCHAR(40) NOT NULL, n INT NOT NULL)"))
    yield made
    made.dispose()


@pytest.fixture
def effects(engine: Engine) -> Callable[[], list[str]]:
    def ask() -> list[str]:
        with engine.connect() as conn:
            return list(conn.execute(text("SELECT message_id FROM effects ORDER BY message_id")).scalars())

    return ask


def record(msg: QueueMessage, session: DbSession) -> None:
    session.execute("INSERT INTO effects VALUES (:id, :n)", {"id": msg.id, "n": msg.payload["n"]})


class Stopping:
    """A handler that records, and stops its consumer with the last message."""

    def __init__(self, consumer: QueueConsumer, last: int) -> None:
        self.seen: list[str] = []
        self.sessions: list[DbSession] = []
        self._consumer, self._left = consumer, last

    def __call__(self, msg: QueueMessage, session: DbSession) -> None:
        self.seen.append(msg.id)
        self.sessions.append(session)
        record(msg, session)
        self._left -= 1
        if not self._left:
            self._consumer.stop()


@pytest.mark.spec(
    "QC-001.4", "QC-001.8", "QC-001.11", "QC-001.12", "QC-001.13", "QC-001.17", "QC-001.18", "QC-001.19", "QC-011.1",
    "QC-001.2",
)  # fmt: skip
def test_each_message_gets_one_session_one_commit_and_one_ack(
    consumer: QueueConsumer,
    engine: Engine,
    effects: Callable[[], list[str]],
    pending: PendingOf,
    commands_of: Commands,
) -> None:
    ids = consumer.queue.enqueue_many([{"n": n} for n in range(5)])
    handler = Stopping(consumer, last=5)

    consumer.run(handler=handler, engine=engine)

    assert handler.seen == ids
    assert effects() == ids
    assert pending() == {}
    assert len({id(session) for session in handler.sessions}) == 5
    assert commands_of()["xack"] == commands_of()["xreadgroup"] == 5
    with pytest.raises(LifecycleError):
        handler.sessions[0].execute("SELECT 1")


@pytest.mark.spec("QC-001.3", "QC-001.5")
def test_the_order_is_fetch_open_handle_commit_ack(
    consumer: QueueConsumer, engine: Engine, effects: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from outside: when the handler runs nothing is committed, when the ack is sent everything is."""
    (message_id,) = consumer.queue.enqueue_many([{"n": 1}])
    steps: list[str] = []
    fetch, ack, enter = consumer.next, consumer.ack, DbSession.__enter__

    def fetching(block_ms: int | None = None) -> QueueMessage | None:
        steps.append(f"fetch {block_ms}")
        return fetch(block_ms)

    def entering(session: DbSession) -> DbSession:
        steps.append("open")
        return enter(session)

    def handling(msg: QueueMessage, session: DbSession) -> None:
        record(msg, session)
        steps.append(f"handle, committed: {effects()}")
        consumer.stop()

    def acking(msg: QueueMessage) -> None:
        steps.append(f"ack, committed: {effects()}")
        ack(msg)

    monkeypatch.setattr(consumer, "next", fetching)
    monkeypatch.setattr(consumer, "ack", acking)
    monkeypatch.setattr(DbSession, "__enter__", entering)
    consumer.run(handler=handling, engine=engine)

    assert steps == ["fetch 5000", "open", "handle, committed: []", f"ack, committed: ['{message_id}']"]


@pytest.mark.spec("QC-001.8", "QC-001.9", "QC-001.10", "QC-003.4")
@pytest.mark.parametrize("way", ["run", "recover", "batches"])
def test_an_empty_wait_opens_no_session_and_calls_no_handler(
    make_consumer: MakeConsumer, engine: Engine, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    consumer = make_consumer(block_ms=60)
    waits: list[int | None] = []
    name = "next_batch" if way == "batches" else "next"
    fetch: Callable[..., Any] = getattr(consumer, name)

    def fetching(*count: int, block_ms: int | None = None) -> Any:
        waits.append(block_ms)
        if len(waits) == 4:
            consumer.stop()
        return fetch(*count, block_ms=block_ms)

    def never(*_: object) -> None:
        raise AssertionError("there was no message")

    monkeypatch.setattr(consumer, name, fetching)
    monkeypatch.setattr(DbSession, "__enter__", never)
    if way == "batches":
        consumer.run_batches(handler=never, engine=engine)
    else:
        consumer.run(handler=never, engine=engine, recover=way == "recover")

    assert waits == [60] * 4


class RefusedError(Exception):
    """The handler's own."""


@pytest.mark.spec("QC-001.6", "QC-001.14", "QC-001.15", "QC-001.4", "QC-004.2", "QC-004.3", "RS-006.6", "RS-006.7")
def test_run_raises_a_handlers_error_after_rollback_with_the_message_pending(
    consumer: QueueConsumer,
    engine: Engine,
    effects: Callable[[], list[str]],
    pending: PendingOf,
    commands_of: Commands,
) -> None:
    ids = consumer.queue.enqueue_many([{"n": 1}, {"n": 2}])
    refusal = RefusedError()
    calls: list[str] = []

    def refuse(msg: QueueMessage, session: DbSession) -> None:
        calls.append(msg.id)
        record(msg, session)
        raise refusal

    with pytest.raises(RefusedError) as caught:
        consumer.run(handler=refuse, engine=engine)

    assert caught.value is refusal
    assert calls == ids[:1]
    assert effects() == []
    assert pending() == {ids[0]: ("alice", 1)}
    assert "xack" not in commands_of()


@pytest.mark.spec("QC-001.16", "QC-011.3")
def test_a_failed_or_unanswered_commit_is_raised_and_not_acknowledged(
    consumer: QueueConsumer,
    db_url: str,
    engine: Engine,
    effects: Callable[[], list[str]],
    fault_proxy: Callable[[str], FaultProxy],
    pending: PendingOf,
) -> None:
    """Two systems, no transaction over both: the row is written and the message will be delivered again."""
    proxy = fault_proxy(db_url)
    # MySQL offers TLS, PyMySQL takes it, and the proxy could not read what it is to break.
    far = create_engine(proxy.url_for(db_url), connect_args={"ssl_disabled": True})
    message_id = consumer.queue.enqueue({"n": 1})

    def record_and_lose_the_reply(msg: QueueMessage, session: DbSession) -> None:
        record(msg, session)
        proxy.drop_next_reply(b"COMMIT")  # not earlier: SET AUTOCOMMIT has the word in it

    with pytest.raises(CommitUnknownError):
        consumer.run(handler=record_and_lose_the_reply, engine=far)

    far.dispose()
    assert effects() == [message_id]
    assert pending() == {message_id: ("alice", 1)}


@pytest.mark.spec("QC-001.16")
def test_a_commit_that_is_refused_is_raised_and_not_acknowledged(
    consumer: QueueConsumer, engine: Engine, effects: Callable[[], list[str]], pending: PendingOf
) -> None:
    message_id = consumer.queue.enqueue({"n": 1})

    def doubtful(msg: QueueMessage, session: DbSession) -> None:
        record(msg, session)
        session.mark_failed(DbWriteError("another transaction was first"))
        consumer.stop()  # a commit would also end the run, and be visible

    with pytest.raises(DbWriteError, match="first"):
        consumer.run(handler=doubtful, engine=engine)

    assert effects() == []
    assert pending() == {message_id: ("alice", 1)}


@pytest.mark.spec("QC-011.2", "QC-009.4")
@pytest.mark.parametrize("command", [b"XREADGROUP", b"XACK"])
def test_a_redis_failure_leaves_run(
    make_consumer: MakeConsumer,
    connect: Connect,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    engine: Engine,
    effects: Callable[[], list[str]],
    command: bytes,
) -> None:
    proxy = fault_proxy(redis_url)
    consumer = make_consumer(client=connect(proxy.url_for(redis_url)))
    message_id = consumer.queue.enqueue({"n": 1})
    proxy.drop_next_request(command)

    with pytest.raises(QueueError) as caught:
        consumer.run(handler=record, engine=engine)

    assert caught.value.command == command.decode()
    assert effects() == ([message_id] if command == b"XACK" else [])


@pytest.mark.spec("CQ-001.14")
def test_a_stop_during_the_handler_lets_it_finish_commit_and_acknowledge(
    consumer: QueueConsumer, engine: Engine, effects: Callable[[], list[str]], pending: PendingOf
) -> None:
    ids = consumer.queue.enqueue_many([{"n": 1}, {"n": 2}])
    working, go_on = threading.Event(), threading.Event()

    def slow(msg: QueueMessage, session: DbSession) -> None:
        record(msg, session)
        working.set()
        assert go_on.wait(60)

    thread = threading.Thread(target=consumer.run, kwargs={"handler": slow, "engine": engine})
    thread.start()
    assert working.wait(60)
    consumer.stop()
    go_on.set()
    thread.join(60)

    assert not thread.is_alive()
    assert effects() == ids[:1]
    assert pending() == {}


@pytest.mark.spec("QC-001.20")
def test_a_second_attempt_inside_one_session_cannot_be_written_by_accident(
    consumer: QueueConsumer, engine: Engine
) -> None:
    consumer.queue.enqueue({"n": 1})

    def again(msg: QueueMessage, session: DbSession) -> None:
        with session:
            record(msg, session)

    with pytest.raises(LifecycleError):
        consumer.run(handler=again, engine=engine)


def test_run_raises_a_malformed_entry_without_a_callback(
    consumer: QueueConsumer,
    engine: Engine,
    effects: Callable[[], list[str]],
    add_raw: Callable[..., str],
    pending: PendingOf,
) -> None:
    bad = [add_raw({"data": "oops"}), add_raw({"data": "oops"})]
    good = consumer.queue.enqueue({"n": 1})
    with pytest.raises(MalformedMessageError):
        consumer.run(handler=record, engine=engine)

    consumer.run(
        handler=Stopping(consumer, last=1),
        engine=engine,
        on_malformed=lambda error: consumer.ack_id(str(error.message_id)),
    )

    assert effects() == [good]
    assert list(pending()) == bad[:1]


def test_an_engine_that_cannot_work_costs_no_message(consumer: QueueConsumer, pending: PendingOf) -> None:
    consumer.queue.enqueue({"n": 1})
    nonsense: Any = object()

    with pytest.raises(ConfigurationError):
        consumer.run(handler=record, engine=nonsense)

    assert pending() == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"handler": lambda msg: None}, r"handler\(msg, session\) and cannot take that"),
        ({"handler": record, "inbox": Inbox}, r"must be an Inbox\(\)"),
        ({"handler": record, "inbox": True}, r"must be an Inbox\(\)"),
    ],
)
def test_unusable_arguments_are_refused_before_the_first_read(
    consumer: QueueConsumer, pending: PendingOf, arguments: dict[str, Any], said: str
) -> None:
    consumer.queue.enqueue({"n": 1})

    for run in (consumer.run, consumer.run_claim_stale):
        with pytest.raises(ConfigurationError, match=said):
            run(engine=create_engine("sqlite://"), **arguments)
    assert pending() == {}


def test_the_session_is_imported_when_run_is_called(
    consumer: QueueConsumer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []

    class Watched(DbSession):
        def __enter__(self) -> Self:
            opened.append(self)
            return super().__enter__()

    monkeypatch.setattr(session_module, "DbSession", Watched)
    consumer.queue.enqueue({"n": 1})
    consumer.run(handler=Stopping(consumer, last=1), engine=engine)

    assert len(opened) == 1


# ---------------------------------------------------------------- the recovery loop
@pytest.mark.spec("QC-010.10", "QC-010.12", "CQ-006.29")
def test_the_recovery_loop_handles_what_others_left_and_nothing_else(
    make_consumer: MakeConsumer,
    engine: Engine,
    effects: Callable[[], list[str]],
    raw: RawRedis,
    stream: str,
    pending: PendingOf,
) -> None:
    alice, bob = make_consumer("alice"), make_consumer("bob")
    ids = alice.queue.enqueue_many([{"n": n} for n in range(4)])
    alice.queue.read(100, 3)
    raw.xclaim(stream, "billing", "alice", 0, ids[:2], idle=60_000, justid=True)

    bob.run_claim_stale(handler=Stopping(bob, last=2), engine=engine, min_idle_ms=30_000)

    assert effects() == ids[:2]
    assert pending() == {ids[2]: ("alice", 1)}


@pytest.mark.spec("CQ-006.36", "QC-005.2")
def test_a_recovery_loop_that_sleeps_for_an_hour_notices_stop(
    consumer: QueueConsumer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal calls stop() too, and a sleep that it interrupts continues afterwards: so no sleep is long."""
    slept: list[float] = []

    def sleep(duration_s: float) -> None:
        slept.append(duration_s)
        if len(slept) == 3:
            consumer.stop()

    monkeypatch.setattr("conquiet.core.lifecycle.time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    consumer.run_claim_stale(handler=record, engine=engine, interval_s=3_600.0)

    assert len(slept) == 3
    assert max(slept) <= 1


@pytest.mark.spec("CQ-006.44", "QC-010.12")
def test_the_recovery_loop_claims_after_the_configured_idle_time(
    make_consumer: MakeConsumer, engine: Engine, effects: Callable[[], list[str]], raw: RawRedis, stream: str
) -> None:
    alice, bob = make_consumer("alice"), make_consumer("bob", claim_idle_ms=600_000)
    young, old = alice.queue.enqueue_many([{"n": 1}, {"n": 2}])
    alice.queue.read(100, 2)
    raw.xclaim(stream, "billing", "alice", 0, [young], idle=300_000, justid=True)
    raw.xclaim(stream, "billing", "alice", 0, [old], idle=900_000, justid=True)

    bob.run_claim_stale(handler=Stopping(bob, last=1), engine=engine)

    assert effects() == [old]


def test_the_recovery_loop_sleeps_between_claims_and_notices_stop(
    consumer: QueueConsumer, engine: Engine, commands_of: Commands
) -> None:
    thread = threading.Thread(
        target=consumer.run_claim_stale, kwargs={"handler": record, "engine": engine, "interval_s": 0.2}
    )
    used = time.process_time()
    thread.start()
    wait_until(lambda: commands_of().get("xinfo|consumers", 0) >= 3)
    consumer.stop()
    thread.join(60)

    assert not thread.is_alive()
    assert time.process_time() - used < 1
    assert "xreadgroup" not in commands_of()


def test_the_recovery_loop_raises_errors_and_passes_malformed_entries(
    make_consumer: MakeConsumer,
    engine: Engine,
    effects: Callable[[], list[str]],
    add_raw: Callable[..., str],
    raw: RawRedis,
    stream: str,
) -> None:
    alice, bob = make_consumer("alice"), make_consumer("bob")
    bad, good = add_raw({"data": "oops"}), alice.queue.enqueue({"n": 1})
    alice.queue.read(100, 2)
    deleted = alice.queue.enqueue({"n": 2})
    alice.queue.read(100)
    raw.xclaim(stream, "billing", "alice", 0, [bad, good, deleted], idle=60_000, justid=True)
    raw.xdel(stream, deleted)

    def refuse(msg: QueueMessage, session: DbSession) -> None:
        raise RefusedError

    with pytest.raises(MalformedMessageError):
        bob.run_claim_stale(handler=refuse, engine=engine, min_idle_ms=30_000)
    with pytest.raises(RefusedError):
        bob.run_claim_stale(handler=refuse, engine=engine, min_idle_ms=30_000)
    put_aside: list[MalformedMessageError] = []
    raw.xclaim(stream, "billing", "bob", 0, [bad, good], idle=60_000, justid=True)
    bob.run_claim_stale(handler=Stopping(bob, last=1), engine=engine, min_idle_ms=30_000, on_malformed=put_aside.append)

    assert [error.message_id for error in put_aside] == [bad]
    assert effects() == [good]
    with pytest.raises(ConfigurationError):
        bob.run_claim_stale(handler=refuse, engine=engine, interval_s=0)


def test_a_stream_that_only_grows_is_reported_once(
    make_consumer: MakeConsumer, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("conquiet.queue.runner._GROWTH_EVERY", 5)
    monkeypatch.setattr("conquiet.queue.retention.WARN_FROM", 10)
    consumer = make_consumer()
    consumer.queue.enqueue_many([{"n": n} for n in range(40)])

    consumer.run(handler=Stopping(consumer, last=39), engine=engine)

    assert caplog.text.count("stream only grows") == 1
