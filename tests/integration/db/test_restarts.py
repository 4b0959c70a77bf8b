"""The server dies during writes and restarts: no confirmed write is lost, and the next write works."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.engine import Connection

from conquiet.config import DbConfig
from conquiet.db import DbOperation, DbOperationType, DbSession, DbWriter, LockStrategy, occ_update, statement_execution
from conquiet.db.writer_pool import Checkout
from conquiet.errors import CommitUnknownError, DbWriteError
from conquiet.testing import wait_until
from conquiet.testing.mysql import MySQLServer

OCC = "occ"
WAYS = [OCC, *(strategy.value for strategy in LockStrategy)]
PATIENCE_S = 60


@dataclass
class Gate:
    """Hold every writer that reaches one step, until the server is dead.

    Attributes:
        step: "after lock" (or after the read, where there is no lock), "after statement", "after commit".
    """

    step: str
    all_here: threading.Barrier = field(default_factory=lambda: threading.Barrier(len(WAYS) + 1))
    dead: threading.Event = field(default_factory=threading.Event)
    came: set[int] = field(default_factory=set)

    def at(self, step: str) -> None:
        me = threading.get_ident()
        if step == self.step and me not in self.came:
            self.came.add(me)
            self.all_here.wait(PATIENCE_S)
            assert self.dead.wait(PATIENCE_S)


@dataclass
class Writers:
    """One writer for each way to write, each on a separate table, because TABLE excludes all others."""

    engine: Engine
    listened: Engine
    gate: Gate = field(default_factory=lambda: Gate("nowhere"))

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        send, commit = statement_execution._send, Checkout.commit

        def watched_send(raw: Any, string: str, params: Any) -> statement_execution.StatementResult:
            if string.startswith("UPDATE"):
                self.gate.at("after lock")  # all of them are held
            answer = send(raw, string, params)
            if string.startswith("UPDATE"):
                self.gate.at("after statement")
            return answer

        def watched_commit(checkout: Checkout) -> None:
            commit(checkout)
            self.gate.at("after commit")

        monkeypatch.setattr(statement_execution, "_send", watched_send)
        monkeypatch.setattr(Checkout, "commit", watched_commit)
        # A listener would make the DbWriters send their statements in another way, so OCC has a separate engine.
        event.listen(self.listened, "before_cursor_execute", lambda *args: self._on(args[2], "after lock"))
        event.listen(self.listened, "after_cursor_execute", lambda *args: self._on(args[2], "after statement"))

    def _on(self, statement: str, step: str) -> None:
        if statement.startswith("UPDATE"):
            self.gate.at(step)

    def write(self, way: str) -> str:
        """Raise the counter of one way by one; return what the writer raised."""
        try:
            self._raise(way)
        except CommitUnknownError:
            return "unknown"
        except DbWriteError:
            return "failed"
        return "acknowledged"

    def _raise(self, way: str) -> None:
        if way != OCC:
            writer = DbWriter(self.engine, DbConfig(f"t_{way}"), LockStrategy(way))
            assert writer.modify(1, lambda row: {"n": row["n"] + 1}).rows == 1
            return
        with DbSession(self.listened) as session:
            session.on_close(lambda _: self.gate.at("after commit"))
            row = session.fetch_one("SELECT * FROM t_occ WHERE id = 1")
            assert row is not None
            occ_update(session, "t_occ", 1, {"n": row["n"] + 1}, expected_version=row["version"])

    def counters(self) -> dict[str, int]:
        with self.listened.connect() as conn:
            return {way: conn.execute(text(f"SELECT n FROM t_{way}")).scalar_one() for way in WAYS}


def test_a_server_that_restarts_in_the_middle(
    make_engine: Callable[..., Engine],
    private_mysql: Callable[..., MySQLServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All strategies concurrently, with the driver under test: a restart takes long."""
    server = private_mysql()
    writers = Writers(make_engine(server.url, pool_size=len(WAYS)), make_engine(server.url))
    with writers.engine.begin() as conn:
        for way in WAYS:
            conn.execute(text(f"CREATE TABLE t_{way} (id INT PRIMARY KEY, n INT NOT NULL, version INT NOT NULL)"))
            conn.execute(text(f"INSERT INTO t_{way} VALUES (1, 0, 1)"))
    writers.watch(monkeypatch)
    outcomes: dict[str, dict[str, str]] = {}

    for step in ("after lock", "after statement", "after commit"):
        writers.gate = gate = Gate(step)
        with ThreadPoolExecutor(len(WAYS)) as threads:
            writes = {way: threads.submit(writers.write, way) for way in WAYS}
            gate.all_here.wait(PATIENCE_S)
            server.kill()
            gate.dead.set()
            outcomes[step] = {way: write.result() for way, write in writes.items()}
        server.restart()
        writers.gate = Gate("nowhere")
        # No lock blocks the next writer. A connection that died in the pool after its last reply is detected by the
        # first write on it; the other connections are closed with it.
        failed = [way for way in WAYS if writers.write(way) == "failed"]
        assert len(failed) <= (step == "after commit"), failed
        assert all(writers.write(way) == "acknowledged" for way in failed)

    assert outcomes == {
        "after lock": dict.fromkeys(WAYS, "failed"),
        "after statement": dict.fromkeys(WAYS, "unknown"),  # from here a COMMIT without a reply
        "after commit": dict.fromkeys(WAYS, "acknowledged"),
    }
    # Unknown commits did not happen: the server was dead before the COMMIT reached it.
    assert writers.counters() == dict.fromkeys(WAYS, 3 + 1)


def connection_ids(admin: Connection) -> set[int]:
    return set(admin.execute(text("SELECT id FROM information_schema.processlist")).scalars())


@pytest.mark.parametrize(("options", "failures"), [({}, 1), ({"pool_pre_ping": True}, 0)])
def test_a_dead_idle_connection_fails_one_write_without_pool_pre_ping(
    make_engine: Callable[..., Engine], engine: Engine, admin: Connection, options: dict[str, Any], failures: int
) -> None:
    """The writer's pool is made like the engine's: settings of the engine hold for it."""
    mine = make_engine(str(engine.url), **options)
    writer = DbWriter(mine, DbConfig("orders"), LockStrategy.ROW)
    known = connection_ids(admin)
    writer.execute(DbOperation("orders", DbOperationType.INSERT, 1, {"id": 1}))
    (idle,) = connection_ids(admin) - known

    admin.execute(text(f"KILL CONNECTION {idle}"))
    wait_until(lambda: idle not in connection_ids(admin))

    failed = 0
    for number in range(2, 5):
        try:
            writer.execute(DbOperation("orders", DbOperationType.INSERT, number, {"id": number}))
        except DbWriteError:
            failed += 1
    assert failed == failures
