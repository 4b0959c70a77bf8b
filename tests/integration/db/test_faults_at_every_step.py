"""Break the connection at every step of a locked update and check what is left.

After each fault: no lock is held, no transaction is open, the pool has its connections back, the next write
works, and the table holds exactly what was acknowledged, or that plus what is called unknown.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.engine import Connection

from conquiet.config import DbConfig
from conquiet.db import (
    AdvisoryLock,
    DbOperation,
    DbOperationType,
    DbSession,
    DbWriter,
    LockStrategy,
    statement_execution,
)
from conquiet.db.locking.naming import lock_name, row_lock_name
from conquiet.db.writer_pool import writer_pool_of
from conquiet.errors import CommitUnknownError, DbWriteError
from conquiet.testing import FaultProxy, wait_until

LOCKED = [strategy for strategy in LockStrategy if strategy is not LockStrategy.NONE]
STEPS = ["before lock", "after lock", "before statement", "after statement", "after commit"]
# The proxy has to read what goes through it.
PLAINTEXT: dict[str, dict[str, Any]] = {"pymysql": {"connect_args": {"ssl_disabled": True}}, "mysqldb": {}}
COMMIT = b"\x03COMMIT"  # the whole command: SET AUTOCOMMIT has the word in it too
_LOCKING = re.compile(r"SELECT GET_LOCK|SELECT \* .* FOR UPDATE|LOCK TABLES")
_RELEASING = re.compile(r"SELECT RELEASE_LOCK|UNLOCK TABLES")


@dataclass
class Saboteur:
    """Calls ``strike`` once, at the armed step of the next write.

    The writer has two ways to send a statement, and which one it takes depends on listeners on the
    engine. ``listen_to`` makes it take SQLAlchemy's; ``stand_before_the_driver`` leaves it the direct one.
    """

    strike: Callable[[Any], object]
    armed: str | None = None
    struck: list[str] = field(default_factory=list)

    def listen_to(self, engine: Engine) -> None:
        event.listen(
            engine,
            "before_cursor_execute",
            lambda conn, _cursor, statement, *_: self._before(statement, conn.connection.dbapi_connection),
        )
        event.listen(
            engine,
            "after_cursor_execute",
            lambda conn, _cursor, statement, *_: self._after(statement, conn.connection.dbapi_connection),
        )
        event.listen(engine, "commit", lambda conn: self._at("before commit", conn.connection.dbapi_connection))

    def stand_before_the_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        send = statement_execution._send

        def sabotaged(raw: Any, string: str, params: Any) -> statement_execution.StatementResult:
            self._before(string, raw)
            answer = send(raw, string, params)
            self._after(string, raw)
            return answer

        monkeypatch.setattr(statement_execution, "_send", sabotaged)

    def _before(self, statement: str, raw: Any) -> None:
        if _LOCKING.match(statement):
            self._at("before lock", raw)
        elif statement.startswith("UPDATE"):
            self._at("before statement", raw)
        elif _RELEASING.match(statement):
            self._at("after commit", raw)

    def _after(self, statement: str, raw: Any) -> None:
        if _LOCKING.match(statement):
            self._at("after lock", raw)
        elif statement.startswith("UPDATE"):
            self._at("after statement", raw)

    def _at(self, step: str, raw: Any) -> None:
        if self.armed == step:
            self.armed = None
            self.struck.append(step)
            self.strike(raw)


@dataclass
class WriteLog:
    """The writer's report about each increment, to be compared with the table."""

    acknowledged: int = 0
    unknown: int = 0
    failed: int = 0

    def write(self, writer: DbWriter) -> None:
        try:
            writer.modify(1, lambda row: {"amount": row["amount"] + 1})
        except CommitUnknownError:
            self.unknown += 1
        except DbWriteError:
            self.failed += 1
        else:
            self.acknowledged += 1

    def check(self, admin: Connection) -> None:
        amount: Any = admin.execute(text("SELECT amount FROM orders WHERE id = 1")).scalar()
        assert self.acknowledged <= amount <= self.acknowledged + self.unknown, self


def nothing_left(admin: Connection, engine: Engine, *names: str) -> None:
    """No lock, no transaction, no LOCK TABLES; every connection back in its pool."""
    wait_until(
        lambda: all(admin.execute(text("SELECT IS_USED_LOCK(:n)"), {"n": name}).scalar() is None for name in names),
        message="an advisory lock is still held",
    )
    wait_until(
        lambda: (
            admin.execute(
                text(
                    "SELECT COUNT(*) FROM information_schema.innodb_trx x "
                    "JOIN information_schema.processlist p ON p.id = x.trx_mysql_thread_id "
                    "WHERE p.db = DATABASE() AND p.id <> CONNECTION_ID()"
                )
            ).scalar()
            == 0
        ),
        message="a transaction is still open",
    )
    admin.execute(text("SET SESSION lock_wait_timeout = 60"))
    admin.execute(text("UPDATE orders SET status = 'seen' WHERE id = 1"))
    assert "Current Checked out connections: 0" in engine.pool.status()
    status = writer_pool_of(engine).pool_status
    assert "Checked out connections: 0" in status or status == "not opened"


def sabotage(writer: DbWriter, saboteur: Saboteur, admin: Connection, log: WriteLog, steps: list[str] = STEPS) -> None:
    name = row_lock_name("conquiet_lock", "orders", 1, default_schema=writer.engine.url.database)
    for step in steps:
        saboteur.armed = step
        log.write(writer)
        saboteur.armed = None
        nothing_left(admin, writer.engine, name)
        log.check(admin)
        before = log.acknowledged
        log.write(writer)
        assert log.acknowledged == before + 1, f"the write after {step} failed"
        log.check(admin)


@pytest.fixture
def row(admin: Connection, engine: Engine) -> None:
    admin.execute(text("INSERT INTO orders (id) VALUES (1)"))


def steps_of(strategy: LockStrategy) -> list[str]:
    """A row lock ends with the transaction: there is no statement after COMMIT to strike at."""
    return STEPS[:-1] if strategy is LockStrategy.ROW else STEPS


@pytest.mark.spec("CQ-003.4", "CQ-005.46")
@pytest.mark.parametrize("way", ["direct", "usual"])
@pytest.mark.parametrize("strategy", LOCKED)
def test_kill_connection_at_every_step(
    engine: Engine,
    admin: Connection,
    row: None,
    strategy: LockStrategy,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saboteur = Saboteur(lambda raw: admin.execute(text(f"KILL CONNECTION {raw.thread_id()}")))
    if way == "usual":
        saboteur.listen_to(engine)
    else:
        saboteur.stand_before_the_driver(monkeypatch)
    log, steps = WriteLog(), steps_of(strategy)

    sabotage(DbWriter(engine, DbConfig("orders"), strategy), saboteur, admin, log, steps)

    assert saboteur.struck == steps
    assert log.failed >= 3


@pytest.mark.parametrize("strategy", LOCKED)
def test_kill_query_at_every_step(
    engine: Engine, admin: Connection, row: None, strategy: LockStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two statements it hits nothing, or the next one. Either way nothing is left behind."""
    saboteur = Saboteur(lambda raw: admin.execute(text(f"KILL QUERY {raw.thread_id()}")))
    saboteur.stand_before_the_driver(monkeypatch)

    sabotage(DbWriter(engine, DbConfig("orders"), strategy), saboteur, admin, WriteLog(), steps_of(strategy))

    assert saboteur.struck == steps_of(strategy)


@pytest.mark.parametrize("strategy", LOCKED)
def test_a_cut_cable_at_every_step(
    make_engine: Callable[..., Engine],
    driver: str,
    engine: Engine,
    db_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    admin: Connection,
    row: None,
    strategy: LockStrategy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy = fault_proxy(db_url)
    far = make_engine(proxy.url_for(db_url), **PLAINTEXT[driver])
    saboteur = Saboteur(lambda _: proxy.disconnect())
    saboteur.stand_before_the_driver(monkeypatch)
    log, steps = WriteLog(), steps_of(strategy)

    sabotage(DbWriter(far, DbConfig("orders"), strategy), saboteur, admin, log, steps)

    assert saboteur.struck == steps
    # Cut right before COMMIT: the client cannot distinguish that from a lost reply.
    assert log.unknown == 1


@pytest.mark.spec("QC-001.16", "CQ-003.4")
@pytest.mark.parametrize("strategy", LOCKED)
def test_a_lost_reply_is_unknown_for_commit_and_failed_otherwise(
    make_engine: Callable[..., Engine],
    driver: str,
    engine: Engine,
    db_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    admin: Connection,
    row: None,
    strategy: LockStrategy,
) -> None:
    proxy = fault_proxy(db_url)
    far = make_engine(proxy.url_for(db_url), **PLAINTEXT[driver])
    writer = DbWriter(far, DbConfig("orders"), strategy)
    writer.modify(1, lambda _: {"status": "warm"})

    proxy.drop_next_reply(b"UPDATE `orders`")
    with pytest.raises(DbWriteError) as failed:
        writer.modify(1, lambda row: {"amount": row["amount"] + 1})
    nothing_left(admin, far)
    amount_after_failure = admin.execute(text("SELECT amount FROM orders")).scalar()
    proxy.drop_next_reply(COMMIT)
    with pytest.raises(CommitUnknownError) as unknown:
        writer.modify(1, lambda row: {"amount": row["amount"] + 1})
    nothing_left(admin, far)

    assert not isinstance(failed.value, CommitUnknownError)
    assert amount_after_failure == 0
    assert unknown.value.errno == 2013
    assert admin.execute(text("SELECT amount FROM orders")).scalar() == 1  # it was there all the time


@pytest.mark.spec("CQ-003.4", "CQ-005.46")
def test_a_lost_reply_to_a_statement_that_commits_itself_is_unknown(
    make_engine: Callable[..., Engine],
    driver: str,
    engine: Engine,
    db_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    admin: Connection,
) -> None:
    proxy = fault_proxy(db_url)
    writer = DbWriter(make_engine(proxy.url_for(db_url), **PLAINTEXT[driver]), DbConfig("orders"))
    insert = [DbOperation("orders", DbOperationType.INSERT, i, {"id": i}) for i in range(4)]
    writer.execute(insert[0])

    proxy.drop_next_reply(b"INSERT")
    with pytest.raises(CommitUnknownError):
        writer.execute(insert[1])
    proxy.drop_next_reply(b"UPDATE")
    with pytest.raises(CommitUnknownError):
        writer.execute(DbOperation("orders", DbOperationType.UPDATE, 0, {"amount": 7}))
    proxy.drop_next_reply(b"UPDATE")
    with pytest.raises(CommitUnknownError):
        DbWriter(writer.engine, DbConfig("orders"), LockStrategy.ADVISORY).execute(
            DbOperation("orders", DbOperationType.UPDATE, 0, {"amount": 8})
        )
    nothing_left(
        admin, writer.engine, row_lock_name("conquiet_lock", "orders", 0, default_schema=writer.engine.url.database)
    )
    proxy.drop_next_reply(b"INSERT")
    with pytest.raises(CommitUnknownError) as caught:
        writer.execute_many(insert[2:])

    assert caught.value.completed == 0
    assert set(admin.execute(text("SELECT id FROM orders")).scalars()) == {0, 1, 2, 3}
    assert writer.execute(insert[1]).duplicate  # a second query finds out


@pytest.mark.spec("QC-001.16", "QC-001.18", "CQ-003.4")
def test_a_session_separates_unknown_from_failed_and_leaves_no_lock(
    make_engine: Callable[..., Engine],
    driver: str,
    engine: Engine,
    db_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    admin: Connection,
    row: None,
) -> None:
    proxy = fault_proxy(db_url)
    far = make_engine(proxy.url_for(db_url), **PLAINTEXT[driver])

    def increment() -> None:
        with DbSession(far) as session:
            AdvisoryLock(session, "k").acquire()
            session.execute("UPDATE orders SET amount = amount + 1")

    increment()
    proxy.drop_next_reply(COMMIT)
    with pytest.raises(CommitUnknownError):
        increment()
    nothing_left(admin, far, lock_name("conquiet_key", "k"))
    proxy.drop_next_reply(b"UPDATE")
    with pytest.raises(DbWriteError) as caught:
        increment()
    nothing_left(admin, far, lock_name("conquiet_key", "k"))
    proxy.drop_next_reply(b"RELEASE_LOCK")
    increment()  # committed: the lost release is not its failure
    nothing_left(admin, far, lock_name("conquiet_key", "k"))

    assert not isinstance(caught.value, CommitUnknownError)
    assert admin.execute(text("SELECT amount FROM orders")).scalar() == 3
