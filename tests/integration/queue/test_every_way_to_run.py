"""Rules of the runner, checked for every way to run a handler: new, own pending, stale, in batches, with an inbox."""

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Engine, create_engine, event, text
from tests.integration.queue.conftest import Connect, MakeConsumer
from tests.redis_clients import RawRedis

from conquiet.db import DbSession
from conquiet.errors import ConflictError, DbWriteError, InfrastructureError, MalformedMessageError, QueueError
from conquiet.queue import QueueConsumer, QueueMessage, QueueWorker
from conquiet.testing import FaultProxy, wait_until
from conquiet.transactional import Inbox, create_tables

PendingOf = Callable[..., dict[str, tuple[str, int]]]
Effects = Callable[[], list[str]]
Commands = Callable[[], dict[str, int]]
Handler = Callable[[list[QueueMessage], DbSession], None]

WAYS = ("run", "run, inbox", "worker", "recover", "claim", "claim, inbox", "batches", "batches, inbox")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
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


def record(msgs: list[QueueMessage], session: DbSession) -> None:
    for msg in msgs:
        session.execute("INSERT INTO effects VALUES (:id)", {"id": msg.id})


def run(consumer: QueueConsumer, way: str, handler: Handler, engine: Engine, **options: Any) -> None:
    """Run ``handler``, which gets a list in every way."""

    def single(one: QueueMessage, its_session: DbSession, /) -> None:
        handler([one], its_session)

    inbox = Inbox() if "inbox" in way else None
    match way.split(",", maxsplit=1)[0]:
        case "run":
            consumer.run(handler=single, engine=engine, inbox=inbox, **options)
        case "worker":
            QueueWorker(consumer, handler=single, engine=engine, recover=False, **options).run()
        case "recover":
            consumer.run(handler=single, engine=engine, recover=True, **options)
        case "claim":
            consumer.run_claim_stale(handler=single, engine=engine, inbox=inbox, min_idle_ms=30_000, **options)
        case _:
            consumer.run_batches(handler=handler, engine=engine, inbox=inbox, batch=2, within_s=0.2, **options)


@pytest.fixture
def messages(
    consumer: QueueConsumer, make_consumer: MakeConsumer, raw: RawRedis, stream: str
) -> Callable[..., list[str]]:
    """``messages(way, n)``: messages that this way of running finds."""

    def make(way: str, count: int = 2) -> list[str]:
        ids = consumer.queue.enqueue_many([{"n": n} for n in range(count)])
        if way == "recover":
            consumer.queue.read(100, count)
        elif way.startswith("claim"):
            make_consumer("bob").queue.read(100, count)
            raw.xclaim(stream, "billing", "bob", 0, ids, idle=60_000, justid=True)
        return ids

    return make


@pytest.mark.spec("CQ-006.1")
@pytest.mark.parametrize("way", [way for way in WAYS if "inbox" not in way])
def test_no_way_without_an_inbox_writes_anything_but_what_the_handler_does(
    consumer: QueueConsumer, engine: Engine, effects: Effects, messages: Callable[..., list[str]], way: str
) -> None:
    ids = messages(way)
    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: sent.append(args[2].split()[0]))
    handled: list[str] = []

    def handler(msgs: list[QueueMessage], session: DbSession) -> None:
        record(msgs, session)
        handled.extend(msg.id for msg in msgs)
        if len(handled) == len(ids):
            consumer.stop()

    run(consumer, way, handler, engine)

    assert sent == ["INSERT"] * len(ids)
    assert effects() == ids


@pytest.mark.spec("CQ-006.42", "CQ-001.12", "RS-007.2")
@pytest.mark.parametrize("way", WAYS)
def test_every_way_counts_what_it_acknowledges_once(
    consumer: QueueConsumer,
    engine: Engine,
    stream: str,
    pending: PendingOf,
    messages: Callable[..., list[str]],
    way: str,
) -> None:
    ids = messages(way)
    left = set(ids)

    def handler(msgs: list[QueueMessage], session: DbSession) -> None:
        left.difference_update(msg.id for msg in msgs)
        if not left:
            consumer.stop()

    run(consumer, way, handler, engine)

    assert pending() == {}
    assert REGISTRY.get_sample_value("conquiet_queue_messages_ack_total", {"stream": stream}) == len(ids)
    assert REGISTRY.get_sample_value("conquiet_queue_ack_noop_total", {"stream": stream}) == 0


@pytest.mark.spec("QC-001.3", "QC-001.5", "QC-001.11", "QC-001.12", "QC-001.13", "QC-001.19")
@pytest.mark.parametrize("way", WAYS)
def test_every_way_commits_before_it_acknowledges(
    consumer: QueueConsumer,
    engine: Engine,
    effects: Effects,
    pending: PendingOf,
    messages: Callable[..., list[str]],
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the moment of each acknowledgement the effect is committed, as a separate session sees."""
    opened: list[DbSession] = []
    enter = DbSession.__enter__

    def entering(session: DbSession) -> DbSession:
        opened.append(session)
        return enter(session)

    monkeypatch.setattr(DbSession, "__enter__", entering)
    ids = messages(way)
    queue: Any = consumer.queue
    ack, ack_many = queue.ack, queue.ack_many
    acknowledged: list[str] = []
    sessions: list[DbSession] = []

    def acking(msg: QueueMessage) -> None:
        assert msg.id in effects()
        acknowledged.append(msg.id)
        ack(msg)

    def acking_many(msgs: list[QueueMessage]) -> None:
        assert {msg.id for msg in msgs} <= set(effects())
        acknowledged.extend(msg.id for msg in msgs)
        ack_many(msgs)

    def handler(msgs: list[QueueMessage], session: DbSession) -> None:
        assert not {msg.id for msg in msgs} & set(effects())
        assert session not in sessions
        sessions.append(session)
        record(msgs, session)
        if msgs[-1].id == ids[-1]:
            consumer.stop()

    queue.ack, queue.ack_many = acking, acking_many
    run(consumer, way, handler, engine)

    assert effects() == sorted(acknowledged) == ids
    assert pending() == {}
    assert opened == sessions


@pytest.mark.spec(
    "QC-001.4", "QC-001.6", "QC-001.14", "QC-001.15", "QC-004.2", "QC-004.3", "RS-001.3", "RS-006.6", "RS-006.7",
    "CQ-006.46",
)  # fmt: skip
@pytest.mark.parametrize(
    ("way", "error"),
    [
        (way, error)
        for way in WAYS
        for error in (LookupError, InfrastructureError, ConflictError, KeyboardInterrupt)
        # As documented: a recovering run waits for a server that is unavailable, and two batches that conflicted are
        # run once more.
        if (way, error) != ("recover", InfrastructureError)
        if not (way.startswith("batches") and error is ConflictError)
    ],
)
def test_what_a_handler_raises_rolls_back_and_leaves_its_message_pending(
    consumer: QueueConsumer,
    engine: Engine,
    effects: Effects,
    pending: PendingOf,
    raw: RawRedis,
    stream: str,
    messages: Callable[..., list[str]],
    way: str,
    error: type[BaseException],
) -> None:
    (entry,) = messages(way, 1)
    calls: list[str] = []
    raised = error("no")

    def handler(msgs: list[QueueMessage], session: DbSession) -> None:
        calls.extend(msg.id for msg in msgs)
        record(msgs, session)
        consumer.stop()  # a run that swallows the error or tries again ends too, and is seen
        if len(calls) == 1:
            raise raised

    with pytest.raises(error) as caught:
        run(consumer, way, handler, engine)

    assert caught.value is raised
    assert calls == [entry]
    assert effects() == []
    assert list(pending()) == [entry]
    assert raw.keys() == [stream.encode()]


@pytest.mark.spec("QC-001.16")
@pytest.mark.parametrize("way", WAYS)
def test_a_refused_commit_is_raised_and_acknowledges_nothing_in_every_way(
    consumer: QueueConsumer,
    engine: Engine,
    effects: Effects,
    pending: PendingOf,
    messages: Callable[..., list[str]],
    way: str,
) -> None:
    (entry,) = messages(way, 1)

    def handler(msgs: list[QueueMessage], session: DbSession) -> None:
        record(msgs, session)
        session.mark_failed(DbWriteError("another transaction was first"))
        consumer.stop()

    with pytest.raises(DbWriteError, match="first"):
        run(consumer, way, handler, engine)

    assert effects() == []
    assert list(pending()) == [entry]


@pytest.mark.spec("QC-011.2", "QC-009.2", "QC-009.4", "QC-008.5")
@pytest.mark.parametrize("way", WAYS)
def test_an_acknowledgement_that_fails_ends_every_way_and_is_sent_once(
    make_consumer: MakeConsumer,
    connect: Connect,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    engine: Engine,
    effects: Effects,
    pending: PendingOf,
    messages: Callable[..., list[str]],
    commands_of: Commands,
    way: str,
) -> None:
    (entry,) = messages(way, 1)
    proxy = fault_proxy(redis_url)
    far = make_consumer("alice", client=connect(proxy.url_for(redis_url)))
    before = commands_of().get("xack", 0)
    proxy.drop_next_request(b"XACK")

    def handler(msgs: list[QueueMessage], session: DbSession) -> None:
        record(msgs, session)
        far.stop()  # an error that is swallowed ends the run too, and is seen

    with pytest.raises(QueueError) as caught:
        run(far, way, handler, engine)

    assert (caught.value.command, caught.value.in_doubt) == ("XACK", True)
    assert commands_of().get("xack", 0) == before
    assert effects() == list(pending()) == [entry]


@pytest.mark.spec("QC-011.2", "QC-009.1", "QC-009.3", "QC-009.4", "QC-009.6", "QC-003.5", "QC-006.7")
@pytest.mark.parametrize("way", WAYS)
def test_a_failed_read_or_claim_ends_every_loop_and_is_sent_once(
    make_consumer: MakeConsumer,
    connect: Connect,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    engine: Engine,
    effects: Effects,
    messages: Callable[..., list[str]],
    way: str,
) -> None:
    messages(way, 1)
    proxy = fault_proxy(redis_url)
    far = make_consumer("alice", client=connect(proxy.url_for(redis_url)))
    command = b"XCLAIM" if way.startswith("claim") else b"XREADGROUP"
    proxy.drop_next_request(command)

    def handler(msgs: list[QueueMessage], session: DbSession) -> None:
        record(msgs, session)
        far.stop()  # a command that is repeated ends the run too, and is seen

    with pytest.raises(QueueError) as caught:
        run(far, way, handler, engine)

    assert (caught.value.command, caught.value.in_doubt) == (command.decode(), True)
    assert effects() == []


@pytest.mark.spec("QC-005.2", "QC-005.3", "QC-005.4", "QC-005.5", "RS-006.10", "RS-006.12", "CQ-006.38")
@pytest.mark.parametrize("way", [*WAYS, "next_batch"])
def test_after_stop_no_way_sends_anything_for_a_message(
    consumer: QueueConsumer,
    engine: Engine,
    messages: Callable[..., list[str]],
    commands_of: Commands,
    raw: RawRedis,
    way: str,
) -> None:
    messages(way)
    consumer.stop()
    raw.config_resetstat()

    if way == "next_batch":
        assert consumer.next_batch(2) == consumer.next_batch(2, block_ms=50) == []
        assert consumer.next(50) is None  # shorter than one slice of a longer wait
    else:
        run(consumer, way, lambda msgs, session: pytest.fail("it was stopped"), engine)

    assert {"xreadgroup", "xack", "xclaim", "xautoclaim"} & set(commands_of()) == set()


@pytest.mark.spec(
    "CQ-001.14", "QC-001.8", "QC-003.3", "QC-004.4", "RS-006.2", "RS-006.8", "CQ-001.13", "CQ-006.32", "CQ-006.36"
)
@pytest.mark.parametrize("way", WAYS)
def test_a_stop_during_a_handler_lets_every_way_commit_and_acknowledge(
    consumer: QueueConsumer,
    engine: Engine,
    effects: Effects,
    pending: PendingOf,
    messages: Callable[..., list[str]],
    way: str,
) -> None:
    ids = messages(way, 4)
    before = pending()
    handled: list[str] = []

    def handler(msgs: list[QueueMessage], session: DbSession) -> None:
        record(msgs, session)
        handled.extend(msg.id for msg in msgs)
        consumer.stop()

    run(consumer, way, handler, engine)

    assert effects() == handled == ids[: 2 if way.startswith("batches") else 1]
    # Unhandled messages are unchanged: none was read, recovered or claimed ahead.
    assert pending() == {entry: row for entry, row in before.items() if entry not in handled}


@pytest.mark.spec(
    "QC-002.3", "QC-002.4", "QC-004.7", "QC-004.8", "QC-004.9", "QC-010.3", "QC-010.4", "QC-010.5", "QC-010.6",
    "QC-010.8", "QC-010.12", "QC-012.3", "QC-012.7", "CQ-006.29",
)  # fmt: skip
@pytest.mark.parametrize("way", ["run", "run, inbox", "worker", "recover", "batches"])
def test_no_loop_over_new_messages_claims_or_starts_a_thread(
    make_consumer: MakeConsumer,
    engine: Engine,
    pending: PendingOf,
    commands_of: Commands,
    raw: RawRedis,
    way: str,
) -> None:
    bob = make_consumer("bob", claim_idle_ms=1)
    alice = make_consumer("alice", claim_idle_ms=600_000 if way == "recover" else 1)
    (stale,) = bob.queue.enqueue_many([{"stale": True}])
    bob.next()
    ids = bob.queue.enqueue_many([{"n": n} for n in range(10)])
    threads = set(threading.enumerate())
    raw.config_resetstat()

    def handler(msgs: list[QueueMessage], session: DbSession) -> None:
        assert set(threading.enumerate()) <= threads
        if msgs[-1].id == ids[-1]:
            alice.stop()

    run(alice, way, handler, engine)

    sent = {name: calls for name, calls in commands_of().items() if name not in {"info", "config|resetstat"}}
    reads = 11 if way == "recover" else 5 if way == "batches" else 10
    # Own pending messages are searched once, at the start.
    asked = {"xpending": 1} if way.startswith(("run", "worker")) else {}
    if way == "batches":  # the leases of a batch are extended before its COMMIT, both in one command
        assert {name: sent.pop(name) for name in ("eval", "xclaim", "xpending")} == {
            "eval": 5,
            "xclaim": 10,
            "xpending": 10,
        }
    assert sent == {"xreadgroup": reads, "xack": 5 if way == "batches" else 10, **asked}
    assert pending() == {stale: ("bob", 1)}


@pytest.mark.spec("QC-003.6", "RS-006.3", "RS-007.1", "RS-007.2", "RS-007.3")
@pytest.mark.parametrize("way", WAYS)
def test_every_way_counts_a_message_once_when_it_comes_and_goes(
    consumer: QueueConsumer, engine: Engine, stream: str, messages: Callable[..., list[str]], way: str
) -> None:
    def counted() -> dict[str, float]:
        names = ("read", "recovered", "claimed", "ack")
        found = {name: REGISTRY.get_sample_value(f"conquiet_queue_messages_{name}_total", label) for name in names}
        return {name: value or 0.0 for name, value in found.items()}

    label = {"stream": stream}
    ids = messages(way)
    before = counted()

    def handler(msgs: list[QueueMessage], session: DbSession) -> None:
        record(msgs, session)
        if msgs[-1].id == ids[-1]:
            consumer.stop()

    run(consumer, way, handler, engine)

    source = {"recover": "recovered", "claim": "claimed"}.get(way.split(",", maxsplit=1)[0], "read")
    assert {name: value - before[name] for name, value in counted().items() if value != before[name]} == {
        source: 2,
        "ack": 2,
    }


@pytest.mark.spec("RS-006.9", "CQ-001.7", "CQ-001.13", "CQ-006.35")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_either_signal_ends_a_run_of_batches(
    make_consumer: MakeConsumer, engine: Engine, number: signal.Signals, commands_of: Commands
) -> None:
    consumer = make_consumer(enable_signal_handlers=True)
    main = threading.get_ident()

    def send() -> None:
        wait_until(lambda: "xreadgroup" in commands_of())
        signal.pthread_kill(main, number)

    sender = threading.Thread(target=send)
    sender.start()
    consumer.run_batches(handler=lambda msgs, session: None, engine=engine)
    sender.join()

    assert consumer.is_stopping


@pytest.mark.spec("CQ-006.29", "CQ-006.39", "QC-006.8", "QC-010.12")
@pytest.mark.parametrize("way", ["run", "run, inbox", "recover", "batches", "batches, inbox"])
def test_every_way_waits_as_configured_and_claims_nothing_meanwhile(
    make_consumer: MakeConsumer, engine: Engine, messages: Callable[..., list[str]], pending: PendingOf, way: str
) -> None:
    stale = messages("claim", 1)
    consumer = make_consumer(block_ms=70)
    queue: Any = consumer.queue
    read, waits = queue.read, []

    def noted(block_ms: int, count: int = 1) -> Any:
        waits.append(block_ms)
        if len(waits) == 2:
            consumer.stop()
        return read(block_ms, count)

    queue.read = noted
    run(consumer, way, lambda msgs, session: pytest.fail("there is no message"), engine)

    assert waits == [70, 70]
    assert pending() == {stale[0]: ("bob", 1)}


@pytest.mark.spec("QC-006.8", "CQ-006.39", "RS-005.19", "RS-005.20")
@pytest.mark.parametrize("bad", [0, -5, 1.5, "5", False])
def test_a_batch_needs_a_wait_that_is_a_positive_int(consumer: QueueConsumer, commands_of: Commands, bad: Any) -> None:
    consumer.queue.enqueue({"n": 1})

    with pytest.raises(QueueError, match="positive int"):
        consumer.next_batch(2, block_ms=bad)
    with pytest.raises(QueueError, match="positive int"):
        consumer.next_batch(bad)

    assert "xreadgroup" not in commands_of()


@pytest.mark.spec("RS-003.1", "RS-003.2", "RS-003.3", "RS-003.5", "CQ-006.10", "QC-006.6")
@pytest.mark.parametrize("way", WAYS)
def test_a_malformed_entry_is_raised_and_stays_pending_in_every_way(
    consumer: QueueConsumer,
    engine: Engine,
    raw: RawRedis,
    stream: str,
    pending: PendingOf,
    way: str,
    messages: Callable[..., list[str]],
) -> None:
    """``recover`` has raised it when it was first read: there it goes to the callback, or is passed by."""
    bad = raw.xadd(stream, {"data": "secret-oops"}).decode()
    seen: list[MalformedMessageError] = []
    if way == "recover" or way.startswith("claim"):
        owner = "alice" if way == "recover" else "bob"
        raw.xreadgroup("billing", owner, {stream: ">"})
        raw.xclaim(stream, "billing", owner, 0, [bad], idle=60_000, justid=True)
    if way == "recover":
        (good,) = messages(way, 1)
        run(consumer, way, lambda msgs, session: consumer.stop(), engine, on_malformed=seen.append)
        assert good not in pending()
    else:
        swallowed = threading.Timer(30, consumer.stop)  # ends a run that does not raise
        swallowed.start()
        with pytest.raises(MalformedMessageError) as caught:
            run(consumer, way, lambda msgs, session: pytest.fail("there is no message"), engine)
        swallowed.cancel()
        swallowed.join()
        seen.append(caught.value)

    assert [error.message_id for error in seen] == [bad]
    assert "secret" not in str(seen)
    assert list(pending()) == [bad]
