"""The tables of the demo: accounts, and the orders that moved money between them."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine, create_engine, event, make_url, text

from conquiet.cli.demo.plan import ACCOUNTS, OPENING_CENTS
from conquiet.db import DbSession, RowLock
from conquiet.transactional import create_tables

_BUSY_S = 60
"""Longest wait of SQLite for its write lock: far longer than the demo takes, because waiting is not an error."""


def open_engine(url: str) -> Engine:
    """Return an engine for the demo's database; SQLite is configured for several processes."""
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, isolation_level="READ COMMITTED", hide_parameters=True)
    engine = create_engine(url, connect_args={"timeout": _BUSY_S}, hide_parameters=True)
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # With the write-ahead log readers do not wait for the writer. NORMAL survives every kill of a process;
    # only a power cut can take the last commits, which the demo does not cover.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


class Store:
    """Accounts and orders, in tables with unique names.

    Args:
        engine: The database.
        suffix: Suffix of the table names; the orchestrator chooses it and passes it to the workers.
    """

    def __init__(self, engine: Engine, suffix: str) -> None:
        self._engine = engine
        self._locks_rows = engine.dialect.name != "sqlite"
        self.accounts = f"conquiet_demo_accounts_{suffix}"
        self.orders = f"conquiet_demo_orders_{suffix}"
        self.inbox = f"conquiet_demo_inbox_{suffix}"
        # Parsed once, not for each of thousands of messages.
        self._record = text(
            f"INSERT INTO {self.orders} (id, payer, payee, cents) VALUES (:order, :payer, :payee, :cents)"  # noqa: S608 - generated names
        )
        self._set = text(f"UPDATE {self.accounts} SET cents = :cents WHERE id = :id")  # noqa: S608
        self._move = text(
            f"UPDATE {self.accounts} SET cents = cents + CASE id WHEN :payer THEN -:cents ELSE :cents END "  # noqa: S608
            "WHERE id IN (:payer, :payee)"
        )
        self.outbox = f"conquiet_demo_outbox_{suffix}"  # created with the schema of the inbox; nothing is sent here

    @staticmethod
    def new_suffix() -> str:
        """Return a suffix that no other demo uses."""
        return uuid4().hex[:8]

    def create(self) -> None:
        """Create the tables and open the accounts."""
        create_tables(self._engine, inbox=self.inbox, outbox=self.outbox)
        with DbSession(self._engine) as session:
            session.execute(f"CREATE TABLE {self.accounts} (id INTEGER PRIMARY KEY, cents BIGINT NOT NULL)")
            session.execute(
                # No unique key on the order number: a second execution must be visible. Only the inbox prevents it.
                f"CREATE TABLE {self.orders} (id INTEGER NOT NULL, payer INTEGER NOT NULL, "
                "payee INTEGER NOT NULL, cents BIGINT NOT NULL)"
            )
            session.execute(
                f"INSERT INTO {self.accounts} (id, cents) VALUES (:id, :cents)",  # noqa: S608 - a generated name
                [{"id": number, "cents": OPENING_CENTS} for number in range(1, ACCOUNTS + 1)],
            )

    def drop(self) -> None:
        """Remove the tables."""
        with DbSession(self._engine) as session:
            for table in (self.orders, self.accounts, self.inbox, self.outbox):
                session.execute(f"DROP TABLE IF EXISTS {table}")

    def apply_order(self, session: DbSession, order: Mapping[str, Any]) -> None:
        """Record one order and move its money, in the caller's transaction.

        On MySQL the balances are read under row locks, taken in the order of the ids so that two
        workers cannot deadlock. SQLite has one writer at a time and needs no row locks.
        """
        session.execute(self._record, order)
        if not self._locks_rows:
            session.execute(self._move, order)
            return
        changes = {order["payer"]: -order["cents"], order["payee"]: order["cents"]}
        for account in sorted(changes):
            # The value comes from the locking read: an earlier read could be stale.
            (row,) = RowLock(session, self.accounts, {"id": account}).acquire()
            session.execute(self._set, {"cents": int(row["cents"]) + changes[account], "id": account})

    def count_orders(self) -> tuple[int, int]:
        """Return the number of different recorded orders, and the number of additional rows."""
        with DbSession(self._engine) as session:
            row = session.fetch_one(f"SELECT COUNT(*) AS n, COUNT(DISTINCT id) AS different FROM {self.orders}")  # noqa: S608
        assert row is not None  # noqa: S101 - an aggregate has one row
        return int(row["different"]), int(row["n"]) - int(row["different"])

    def balances(self) -> dict[int, int]:
        """Return the balance of each account."""
        with DbSession(self._engine) as session:
            rows = session.fetch_all(f"SELECT id, cents FROM {self.accounts}")  # noqa: S608
        return {int(row["id"]): int(row["cents"]) for row in rows}
