"""The server's reports about transactions that lost the reply to COMMIT."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import Connection, Engine, text

from conquiet.db.commit_status import (
    CommitStatus,
    TransactionId,
    current_transaction,
    resolve_commit,
    status_of,
)
from conquiet.db.session import DbSession
from conquiet.errors import CommitUnknownError, DbWriteError
from conquiet.testing import FaultProxy, PostgresServer, wait_until
from conquiet.transactional import Outbox, OutboxMessage, OutboxRelay, PublishOutcome, create_tables


@pytest.fixture
def open_transaction(engine: Engine) -> Iterator[tuple[Connection, TransactionId]]:
    """A transaction that has written a row and is not committed."""
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO orders (id) VALUES (1)"))
        found = current_transaction(connection, "a transaction")
        assert isinstance(found, TransactionId)
        yield connection, found
        connection.invalidate()


def test_a_transaction_that_wrote_nothing_has_no_id(engine: Engine) -> None:
    with engine.connect() as connection:
        assert current_transaction(connection, "a transaction") is None
        connection.execute(text("SELECT 1"))
        assert current_transaction(connection, "a transaction") is None


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_failed_transaction_is_recognised_with_each_driver(postgres_url: str, driver: str) -> None:
    """With asyncpg the state of the connection is not known: the server is queried."""
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(postgres_url.replace("psycopg", driver))
    async with engine.connect() as connection:
        with pytest.raises(DBAPIError):
            await connection.execute(text("SELECT 1 / 0"))
        with pytest.raises(DbWriteError, match="a transaction failed: one of its statements failed"):
            await connection.run_sync(current_transaction, "a transaction")
    await engine.dispose()


def test_the_server_knows_what_is_committed_and_what_is_not(
    engine: Engine, open_transaction: tuple[Connection, TransactionId]
) -> None:
    connection, committed = open_transaction
    connection.commit()
    connection.execute(text("INSERT INTO orders (id) VALUES (2)"))
    aborted = current_transaction(connection, "a transaction")
    connection.rollback()

    assert isinstance(aborted, TransactionId)
    assert resolve_commit(engine, committed) is CommitStatus.COMMITTED
    assert resolve_commit(engine, aborted) is CommitStatus.ABORTED


def test_a_backend_that_has_not_noticed_the_loss_is_ended(
    engine: Engine, open_transaction: tuple[Connection, TransactionId], count: Callable[[], int]
) -> None:
    """A partition: the server keeps the transaction, and the row locks in it, for hours."""
    _, transaction = open_transaction

    assert resolve_commit(engine, transaction) is CommitStatus.ABORTED
    assert count() == 0


WITH_STANDBY = {"synchronous_standby_names": "away", "synchronous_commit": "local"}
LATE_TRIGGER = """
CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()
"""


@pytest.mark.parametrize("waits_for", ["SyncRep", "advisory"])
def test_a_commit_under_way_is_not_interrupted_before_a_standby_has_it(
    private_postgres: Callable[..., PostgresServer], make_engine: Callable[..., Engine], waits_for: str
) -> None:
    """Interrupted where it waits for the standby, it is committed on this server alone: a fail-over would lose it.

    Elsewhere it may be about to wait: here it is kept from that by a deferred trigger.
    """
    engine = make_engine(private_postgres(settings=WITH_STANDBY).url)
    observer = engine.execution_options(isolation_level="AUTOCOMMIT")
    waits = text("SELECT pid FROM pg_stat_activity WHERE wait_event = :event")
    with engine.connect() as connection, observer.connect() as other, ThreadPoolExecutor(1) as thread:
        other.execute(text("CREATE TABLE orders (id INT)"))
        if waits_for == "advisory":
            other.exec_driver_sql(LATE_TRIGGER)
            other.execute(text("SELECT pg_advisory_lock(1)"))
        else:
            connection.execute(text("SET synchronous_commit = on"))
        connection.execute(text("INSERT INTO orders (id) VALUES (1)"))
        transaction = current_transaction(connection, "a transaction")
        assert isinstance(transaction, TransactionId)

        committing = thread.submit(connection.commit)
        wait_until(lambda: other.execute(waits, {"event": waits_for}).first())
        found = [status_of(other, transaction, end_backend=True) for _ in range(2)]
        waiting = other.execute(waits, {"event": waits_for}).scalars().all()
        other.execute(text("SELECT pg_advisory_unlock_all()"))
        for pid in waiting if waits_for == "SyncRep" else ():
            other.execute(text("SELECT pg_cancel_backend(:pid)"), {"pid": pid})
        committing.result(60)

        assert found == [None, None]
        assert len(waiting) == 1
        assert status_of(other, transaction) is CommitStatus.COMMITTED


def test_a_transaction_whose_client_is_gone_is_ended_with_a_standby_too(
    private_postgres: Callable[..., PostgresServer], make_engine: Callable[..., Engine]
) -> None:
    """COMMIT did not arrive: nothing can be committed on one server alone, and the row locks would stay for hours."""
    engine = make_engine(private_postgres(settings=WITH_STANDBY).url)
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE orders (id INT)"))
        transaction = current_transaction(connection, "a transaction")
        assert isinstance(transaction, TransactionId)

        assert resolve_commit(engine, transaction) is CommitStatus.ABORTED
        connection.invalidate()


def test_another_timeline_is_not_trusted(engine: Engine, open_transaction: tuple[Connection, TransactionId]) -> None:
    """A standby that lagged was promoted: it may give the same id to another transaction, and commit that."""
    connection, transaction = open_transaction
    connection.commit()

    assert resolve_commit(engine, replace(transaction, timeline="000000FF")) is CommitStatus.UNKNOWN


def test_an_id_of_the_future_is_unknown(engine: Engine, open_transaction: tuple[Connection, TransactionId]) -> None:
    _, transaction = open_transaction
    later = replace(transaction, xid=str(int(transaction.xid) + 1_000_000))

    assert resolve_commit(engine, later) is CommitStatus.UNKNOWN


def test_a_commit_stays_unknown_while_the_server_is_away(
    engine: Engine,
    make_engine: Callable[..., Engine],
    postgres_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("conquiet.db.session.resolve_commit", lambda *of: resolve_commit(*of, timeout_s=0.2))
    proxy = fault_proxy(postgres_url)
    far = make_engine(proxy.url_for(postgres_url))

    with pytest.raises(CommitUnknownError), DbSession(far) as session:  # noqa: PT012 - leaving the block raises
        session.execute("INSERT INTO orders (id) VALUES (1)")
        session.before_commit(lambda _: proxy.refuse())
        proxy.drop_next_reply(b"COMMIT")
    assert far.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_a_restart_does_not_change_the_answer(
    private_postgres: Callable[..., PostgresServer], make_engine: Callable[..., Engine]
) -> None:
    server = private_postgres()
    engine = make_engine(server.url)
    found = []
    # The commit comes last: it writes the log to the disk. A server that has lost the log does not know a transaction.
    for table, end in (("one", Connection.rollback), ("two", Connection.commit)):
        with engine.connect() as connection:
            connection.execute(text(f"CREATE TABLE {table} (id INT)"))
            found.append(current_transaction(connection, "a transaction"))
            end(connection)

    server.kill()
    server.restart()

    assert [resolve_commit(engine, one) for one in found if isinstance(one, TransactionId)] == [
        CommitStatus.ABORTED,
        CommitStatus.COMMITTED,
    ]


@pytest.mark.parametrize("lost", [False, True], ids=["COMMIT waits", "its connection is lost"])
def test_a_forced_stop_ends_the_resolution_of_a_commit(
    postgres_url: str, make_engine: Callable[..., Engine], fault_proxy: Callable[[str], FaultProxy], *, lost: bool
) -> None:
    """Opening a connection to a server that does not reply takes psycopg 130 s."""
    direct, proxy = make_engine(postgres_url), fault_proxy(postgres_url)
    create_tables(direct)
    with DbSession(direct) as session:
        Outbox().add(session, "t", {})

    class Target:
        def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
            proxy.stall_next_reply(b"COMMIT")
            return [(PublishOutcome.PUBLISHED, "")] * len(messages)

    relay = OutboxRelay(make_engine(proxy.url_for(postgres_url)), {"t": Target()})
    with ThreadPoolExecutor() as threads:
        running = threads.submit(relay.run)
        wait_until(lambda: bool(proxy.counters.faults), message="the reply to COMMIT is held back")
        if lost:
            connections = proxy.counters.connections
            proxy.disconnect()
            wait_until(lambda: proxy.counters.connections > connections, message="the status is queried")
        relay.stop()
        relay.stop()
        try:
            running.result(5.0)
        finally:
            proxy.resume()
