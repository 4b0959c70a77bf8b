"""Inbox, outbox and relay on PostgreSQL: waits, notifications, and costs."""

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from conquiet.core.backoff import Backoff
from conquiet.db.commit_status import CommitStatus, TransactionId, current_transaction, status_of
from conquiet.db.session import DbSession
from conquiet.errors import DbWriteError, MessageInProgressError
from conquiet.queue.models import QueueMessage
from conquiet.testing import FaultProxy, PostgresServer, wait_until
from conquiet.transactional import Inbox, Outbox, OutboxMessage, OutboxRelay, PublishOutcome, create_tables
from conquiet.transactional.outbox_store import OutboxStore
from conquiet.transactional.sql_dialect import dialect_named
from conquiet.transactional.statements import outbox_statements

MESSAGE = QueueMessage("orders", "billing", "1-0", {})
MakeEngine = Callable[..., Engine]


def a_message(message_id: str, data: bytes) -> QueueMessage:
    return QueueMessage("orders", "billing", message_id, {}).with_bytes(data)


@pytest.fixture
def engine(make_engine: MakeEngine, postgres_url: str) -> Engine:
    engine = make_engine(postgres_url)
    create_tables(engine)
    return engine


def rows(engine: Engine, table: str = "conquiet_inbox") -> int:
    with DbSession(engine) as session:
        return int(session.execute_scalar(f"SELECT COUNT(*) FROM {table}"))


def waiting(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(
            connection.execute(
                text(
                    "SELECT COUNT(*) FROM pg_stat_activity "
                    "WHERE wait_event_type = 'Lock' AND datname = current_database()"
                )
            ).scalar_one()
        )


def enter(engine: Engine, message: QueueMessage = MESSAGE) -> bool:
    with DbSession(engine) as session, Inbox().once(session, message) as first_time:
        return first_time


class FirstRun:
    """A run of MESSAGE in a thread, which holds its transaction open until the test ends it."""

    def __init__(self, pool: ThreadPoolExecutor, engine: Engine) -> None:
        self._entered, self._end = threading.Event(), threading.Event()
        self._fail = False
        self._future = pool.submit(self._run, engine)
        assert self._entered.wait(60)

    def _run(self, engine: Engine) -> None:
        with DbSession(engine) as session, Inbox().once(session, MESSAGE) as first_time:
            assert first_time
            self._entered.set()
            assert self._end.wait(60)
            if self._fail:
                raise RuntimeError

    def commit(self) -> None:
        self._end.set()
        self._future.result(60)

    def roll_back(self) -> None:
        self._fail = True
        self._end.set()
        with pytest.raises(RuntimeError):
            self._future.result(60)


# ------------------------------------------------------------------ inbox
def test_a_second_run_waits_and_is_skipped_after_a_commit(engine: Engine) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = FirstRun(pool, engine)
        second = pool.submit(enter, engine)
        wait_until(lambda: waiting(engine) == 1, message="the second run waits")
        assert not second.done()

        first.commit()

        assert second.result(60) is False
    assert rows(engine) == 1


def test_of_many_that_waited_for_a_rollback_exactly_one_runs(engine: Engine) -> None:
    """Unlike on MySQL none of them meets a deadlock: all but one see the row of the one."""
    with ThreadPoolExecutor(4) as pool:
        first = FirstRun(pool, engine)
        others: list[Future[bool]] = [pool.submit(enter, engine) for _ in range(3)]
        wait_until(lambda: waiting(engine) == 3, message="three runs wait")

        first.roll_back()

        assert sorted(other.result(60) for other in others) == [False, False, True]
    assert rows(engine) == 1


def test_a_duplicate_leaves_the_transaction_usable(engine: Engine) -> None:
    assert enter(engine) is True
    with DbSession(engine) as session:
        with Inbox().once(session, MESSAGE) as first_time:
            assert first_time is False
        assert session.execute("UPDATE conquiet_inbox SET digest = NULL") == 1


def test_waiting_too_long_is_a_conflict_and_leaves_nothing(
    engine: Engine, postgres_url: str, make_engine: MakeEngine
) -> None:
    impatient = make_engine(postgres_url, connect_args={"options": "-c lock_timeout=100ms"})
    with ThreadPoolExecutor(1) as pool:
        first = FirstRun(pool, engine)

        with pytest.raises(MessageInProgressError) as caught:
            enter(impatient)

        assert caught.value.sqlstate == "55P03"
        first.roll_back()
    assert rows(engine) == 0


def test_a_snapshot_older_than_the_row_is_a_conflict(
    engine: Engine, postgres_url: str, make_engine: MakeEngine
) -> None:
    """At REPEATABLE READ the INSERT meets a row that the transaction cannot see. The next delivery decides."""
    repeatable = make_engine(postgres_url, isolation_level="REPEATABLE READ")
    with pytest.raises(MessageInProgressError) as caught, DbSession(repeatable) as session:  # noqa: PT012
        session.execute_scalar("SELECT COUNT(*) FROM conquiet_inbox")
        assert enter(engine) is True
        with Inbox().once(session, MESSAGE):
            pass

    assert caught.value.sqlstate == "40001"


def test_a_missing_table_names_the_remedy(make_engine: MakeEngine, postgres_url: str) -> None:
    engine = make_engine(postgres_url)
    with pytest.raises(DbWriteError, match="conquiet db init"):
        enter(engine)
    with pytest.raises(DbWriteError, match="conquiet db init"), DbSession(engine) as session:
        Outbox().add(session, "t", {})


def test_the_inbox_and_the_outbox_cost_one_statement_each(private_postgres: Callable[..., PostgresServer]) -> None:
    """Counted at the server: a first time, a duplicate, an id that another message had, and its duplicate."""
    server = private_postgres(settings={"log_statement": "all"})
    engine = create_engine(server.url)
    create_tables(engine)

    def statements() -> int:
        return len(re.findall(r"LOG:  (?:execute|statement)", server.log_tail(100_000)))

    def cost(work: Callable[[DbSession], object]) -> int:
        before = statements()
        with DbSession(engine) as session:
            work(session)
        return statements() - before

    def enter_it(message: QueueMessage) -> Callable[[DbSession], object]:
        return lambda session: Inbox().once(session, message).__enter__()

    cost(lambda session: session.execute("SELECT 1"))  # the first use of a connection sends more
    assert cost(lambda session: session.execute("SELECT 1")) == 4  # BEGIN, the statement, the transaction's id, COMMIT
    one, other = a_message("1-0", b"1"), a_message("1-0", b"2")

    # The first time BEGIN, the INSERT, COMMIT: the INSERT has returned the transaction's id.
    assert [cost(enter_it(message)) for message in (one, one, other, other)] == [3, 5, 6, 7]
    assert cost(lambda session: Outbox().add(session, "t", {"n": 1})) - 3 == 1
    engine.dispose()


def test_the_inbox_row_returns_the_id_of_its_transaction(engine: Engine) -> None:
    """The id that resolves a lost reply to COMMIT: the same that the server would report."""
    found = []
    for number in range(2):
        with DbSession(engine) as session:
            Inbox().once(session, a_message(f"{number}-0", b"1")).__enter__()
            noted = current_transaction(session.connection, "a transaction")
            assert isinstance(noted, TransactionId)
            assert noted.xid == session.execute_scalar("SELECT CAST(pg_current_xact_id() AS text)")
            found.append(noted)

    assert found[0] != found[1]
    with engine.connect() as connection:
        assert [status_of(connection, one) for one in found] == [CommitStatus.COMMITTED] * 2


def test_a_transaction_that_fails_after_its_inbox_row_is_not_committed(engine: Engine) -> None:
    """COMMIT would roll back without an error. The id is known, and does not prove a healthy transaction."""
    with engine.connect() as connection:
        connection.begin()
        Inbox().once(connection, MESSAGE).__enter__()
        with pytest.raises(DBAPIError):
            connection.execute(text("SELECT 1 / 0"))
        with pytest.raises(DbWriteError, match="one of its statements failed"):
            current_transaction(connection, "a transaction")
        connection.rollback()


def test_old_inbox_rows_are_purged_in_batches(engine: Engine) -> None:
    with DbSession(engine) as session:
        session.execute(
            "INSERT INTO conquiet_inbox SELECT 's', 'g', CAST(CAST(n AS text) AS bytea), now() - INTERVAL '1 hour' "
            "FROM generate_series(1, 25) AS n"
        )
    enter(engine)

    assert Inbox().purge(engine, older_than_s=60.0, batch=10) == 25
    assert rows(engine) == 1


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_the_same_statements_work_with_async_drivers(engine: Engine, postgres_url: str, driver: str) -> None:
    async_engine = create_async_engine(postgres_url.replace("psycopg", driver))
    answers = []
    for message in (a_message("1-0", b"1"), a_message("1-0", b"1"), a_message("1-0", b"2")):
        async with async_engine.begin() as connection:
            async with Inbox().once(connection, message) as first_time:
                answers.append(first_time)
            await Outbox().add_async(connection, "t", {"n": 1}, key="k", delay_s=0.001)
            await Outbox().add_async(connection, "t", {"n": 1}, event="paid")
    await async_engine.dispose()

    assert answers == [True, False, True]
    assert rows(engine, "conquiet_outbox") == 6


# ------------------------------------------------------------------ relay
class Recording:
    """A target that accepts everything."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.arrived = threading.Event()
        self._lock = threading.Lock()

    def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
        with self._lock:
            self.names += [message.payload.decode() for message in messages]
        self.arrived.set()
        return [(PublishOutcome.PUBLISHED, "")] * len(messages)


@pytest.fixture
def target() -> Recording:
    return Recording()


def add(engine: Engine, *names: str, key: str | None = None) -> None:
    with DbSession(engine) as session:
        for name in names:
            Outbox().add(session, "ledger", {"n": name}, key=key)


def named(*names: str) -> list[str]:
    return [f'{{"n":"{name}"}}' for name in names]


def test_many_relays_publish_each_row_once_in_the_order_of_each_key(engine: Engine, target: Recording) -> None:
    """No relay dies here, so nothing may be published twice either. Rows are added while the relays run."""
    keys, each = 5, 40
    added, stop = threading.Event(), threading.Event()

    def relay_until_done() -> int:
        published = 0
        with OutboxRelay(engine, {"ledger": target}, batch=7) as relay:
            while not stop.is_set():
                published += relay.relay_once().published
                if added.is_set() and rows(engine, "conquiet_outbox") == 0:
                    stop.set()
        return published

    with ThreadPoolExecutor(3) as pool:
        relays = [pool.submit(relay_until_done) for _ in range(3)]
        for number in range(each):
            for key in range(keys):
                add(engine, f"{key}:{number}", key=str(key))
            add(engine, f"x:{number}")
        added.set()
        shares = [relay.result(60) for relay in relays]

    assert sum(shares) == len(target.names) == len(set(target.names)) == (keys + 1) * each
    by_key = defaultdict(list)
    for name in target.names:
        of, _, place = name.removeprefix('{"n":"').removesuffix('"}').partition(":")
        by_key[of].append(int(place))
    for of in map(str, range(keys)):
        assert by_key[of] == list(range(each)), f"key {of} is out of order"


def test_a_key_belongs_to_the_relay_that_holds_its_oldest_row(engine: Engine, target: Recording) -> None:
    add(engine, "a1", "a2", key="a")
    add(engine, "b1", key="b")
    with OutboxRelay(engine, {"ledger": target}) as relay:
        with DbSession(engine) as other:
            other.fetch_all("SELECT seq FROM conquiet_outbox WHERE seq = 1 FOR UPDATE")

            relay.drain()

            assert target.names == named("b1"), "a2 is free, but what is before it is not out yet"
        relay.drain()
    assert target.names == named("b1", "a1", "a2")


def test_an_older_row_committed_after_the_lock_holds_its_key_back(
    engine: Engine, target: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers are given when rows are written, but rows are visible only when they are committed."""
    lock_heads = OutboxStore.lock_heads
    with OutboxRelay(engine, {"ledger": target}) as relay, ExitStack() as slow:
        Outbox().add(slow.enter_context(DbSession(engine)), "ledger", {"n": "a1"}, key="a")
        add(engine, "a2", key="a")

        def lock_then_commit(self: OutboxStore, *args: object, **kwargs: object) -> object:
            locked = lock_heads(self, *args, **kwargs)  # type: ignore[arg-type]
            assert locked, "a2 is the oldest row that can be seen"
            slow.close()  # commits
            return locked

        with monkeypatch.context() as patched:
            patched.setattr(OutboxStore, "lock_heads", lock_then_commit)
            assert relay.relay_once().published == 0
        relay.drain()
    assert target.names == named("a1", "a2")


def test_a_relay_reads_committed_whatever_the_engines_level(
    engine: Engine, make_engine: MakeEngine, postgres_url: str, target: Recording
) -> None:
    """A scan at SERIALIZABLE would fail whenever an application writes concurrently."""
    strict = make_engine(postgres_url, isolation_level="SERIALIZABLE")
    with OutboxRelay(strict, {"ledger": target}) as relay, DbSession(relay._engine) as session:
        assert session.execute_scalar("SHOW transaction_isolation") == "read committed"
        assert session.execute_scalar("SHOW idle_in_transaction_session_timeout") == "2min"
    with DbSession(strict) as session:
        assert session.execute_scalar("SHOW transaction_isolation") == "serializable"
        assert session.execute_scalar("SHOW idle_in_transaction_session_timeout") == "0"


@pytest.fixture
def start_relay(target: Recording) -> Iterator[Callable[..., OutboxRelay]]:
    """Run a relay in a thread; it is stopped afterwards."""
    with ExitStack() as stack:

        def start(engine: Engine, *, poll_s: float) -> OutboxRelay:
            relay = stack.enter_context(
                OutboxRelay(engine, {"ledger": target}, poll_s=poll_s, backoff=Backoff(base_s=0.01, cap_s=0.05))
            )
            running = threading.Thread(target=relay.run)
            stack.callback(running.join, 60)
            stack.callback(relay.stop)
            running.start()
            return relay

        yield start


def listens(relay: OutboxRelay) -> bool:
    assert relay._listener is not None
    return relay._listener.is_listening


def test_a_commit_wakes_the_relay_before_its_next_poll(
    engine: Engine, start_relay: Callable[..., OutboxRelay], target: Recording
) -> None:
    relay = start_relay(engine, poll_s=600.0)
    wait_until(lambda: listens(relay), message="the relay listens")
    with pytest.raises(RuntimeError), DbSession(engine) as session:  # noqa: PT012 - one transaction
        Outbox().add(session, "ledger", {"n": "never"})
        raise RuntimeError

    add(engine, "now")

    assert target.arrived.wait(60)
    assert target.names == named("now")


def test_polling_finds_what_no_notification_reports(
    engine: Engine, start_relay: Callable[..., OutboxRelay], target: Recording
) -> None:
    start_relay(engine, poll_s=0.05)
    with DbSession(engine) as session:
        Outbox(wake=False).add(session, "ledger", {"n": "silent"})

    assert target.arrived.wait(30)


def test_a_listener_without_a_connection_polls_until_it_listens_again(
    engine: Engine,
    make_engine: MakeEngine,
    postgres_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    start_relay: Callable[..., OutboxRelay],
    target: Recording,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("conquiet.transactional.notifications._PAUSE_S", 0.2)
    proxy = fault_proxy(postgres_url)
    relay = start_relay(make_engine(proxy.url_for(postgres_url)), poll_s=0.05)
    wait_until(lambda: listens(relay), message="the relay listens")

    proxy.disconnect()
    add(engine, "after the cut")

    wait_until(lambda: target.names == named("after the cut"), message="published")
    wait_until(lambda: listens(relay), message="it listens again")


def test_rows_that_wait_for_an_unserved_target_are_found_by_index(engine: Engine, target: Recording) -> None:
    """The relay searches for them twice a minute. That must not read every waiting row."""
    with DbSession(engine) as session:
        for number in range(600):
            Outbox().add(session, "ledger" if number % 2 else "leger", {"n": number}, key=str(number % 7))
        session.execute("UPDATE conquiet_outbox SET due_at = '2020-01-01', created_at = '2020-01-01'")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE conquiet_outbox"))

    with OutboxRelay(engine, {"ledger": target}) as relay, DbSession(engine) as session:
        session.execute("SET LOCAL enable_seqscan = off")  # 600 rows are few pages
        relay._unserved.check(session)
        assert relay.unserved_targets == ["leger"]
        names = outbox_statements(dialect_named("postgresql"), "conquiet_outbox").target_names
        plan = session.fetch_all(f"EXPLAIN (ANALYZE, FORMAT TEXT) {names.text}")

    assert "Index Only Scan" in str(plan)
    assert max(int(count) for count in re.findall(r"rows=(\d+) loops", str(plan))) <= 3


def test_refused_messages_are_parked_listed_and_released(engine: Engine) -> None:
    class Refusing:
        def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
            return [(PublishOutcome.REFUSED, "no")] * len(messages)

    add(engine, "bad")
    with OutboxRelay(engine, {"ledger": Refusing()}, max_attempts=2, backoff=Backoff(base_s=0.0, cap_s=0.0)) as relay:
        relay.drain()
    (parked,) = Outbox().parked(engine)
    assert (parked.attempts, parked.reason, parked.target) == (2, "no", "ledger")
    backlog = Outbox().backlog(engine)["ledger"]
    assert (backlog.waiting, backlog.parked) == (0, 1)

    assert Outbox().unpark(engine, parked.seq) is True
    assert Outbox().unpark(engine, parked.seq) is False
    assert Outbox().backlog(engine)["ledger"].waiting == 1
