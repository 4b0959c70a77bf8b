"""One function per lock strategy, and the two ways without a lock. Needs a MySQL or MariaDB.

python examples/locking_strategies.py mysql+pymysql://user:password@host/database
"""

import sys

from sqlalchemy import Engine, create_engine, text

from conquiet import DbConfig, DbOperation, DbOperationType, DbSession, DbWriter, LockStrategy
from conquiet.db import AdvisoryLock, RowLock, insert_idempotent, occ_update, retry_on_conflict


def insert_needs_no_lock(engine: Engine) -> None:
    """Insert twice: the primary key keeps one row."""
    writer = DbWriter(engine, DbConfig("accounts"))
    op = DbOperation("accounts", DbOperationType.INSERT, 1, {"id": 1, "balance": 100})

    assert writer.execute(op).rows == 1
    assert writer.execute(op).duplicate


def row(engine: Engine) -> None:
    """Change existing rows: the default choice for read-modify-write."""
    writer = DbWriter(engine, DbConfig("accounts"), LockStrategy.ROW)

    outcome = writer.modify(1, lambda account: {"balance": account["balance"] - 30})

    assert outcome.rows == 1


def advisory(engine: Engine) -> None:
    """Exclude writers that use the same strategy; readers and other writers continue."""
    writer = DbWriter(engine, DbConfig("accounts"), LockStrategy.ADVISORY)
    writer.modify(1, lambda account: {"balance": account["balance"] + 5})


def advisory_and_row(engine: Engine) -> None:
    """Use both: waiting by name, and safety against code that does not use our locks."""
    writer = DbWriter(engine, DbConfig("accounts"), LockStrategy.ADVISORY_AND_ROW)
    writer.modify(1, lambda account: {"balance": account["balance"] + 5})


def table(engine: Engine) -> None:
    """Lock the whole table, readers included, for rare changes of many rows."""
    writer = DbWriter(engine, DbConfig("accounts"), LockStrategy.TABLE)
    writer.modify(1, lambda account: {"balance": account["balance"] + 5})


def none(engine: Engine) -> None:
    """Write values that do not depend on the old ones."""
    writer = DbWriter(engine, DbConfig("accounts"), LockStrategy.NONE)
    writer.execute(DbOperation("accounts", DbOperationType.UPDATE, 1, {"note": "seen"}))


def optimistic(engine: Engine) -> None:
    """Take no lock between reading and writing; the second writer retries in a new session."""

    def withdraw(session: DbSession) -> int:
        account = session.fetch_one("SELECT balance, version FROM accounts WHERE id = :id", {"id": 1})
        assert account is not None
        new = {"balance": account["balance"] - 5}
        return occ_update(session, "accounts", 1, new, expected_version=account["version"])

    retry_on_conflict(engine, withdraw, attempts=5)


def transfer(engine: Engine) -> None:
    """Change two rows in one transaction: lock both, always in the same order."""
    with DbSession(engine) as session:
        insert_idempotent(session, "accounts", 2, {"balance": 0})
        (source,) = RowLock(session, "accounts", {"id": 1}).acquire()
        (target,) = RowLock(session, "accounts", {"id": 2}).acquire()
        for account, balance in ((1, source["balance"] - 20), (2, target["balance"] + 20)):
            session.execute("UPDATE accounts SET balance = :b WHERE id = :id", {"b": balance, "id": account})


def once_at_a_time(engine: Engine) -> None:
    """Take a named lock for work that is not one row. It is held until after the commit."""
    with DbSession(engine) as session, AdvisoryLock(session, "monthly report", timeout_s=5):
        session.execute("UPDATE accounts SET note = 'reported'")


def main(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as conn:
        conn.execute(text("DROP TABLE IF EXISTS accounts"))
        conn.execute(
            text(
                "CREATE TABLE accounts (id INT PRIMARY KEY, balance INT NOT NULL, note VARCHAR(40), "
                "version INT NOT NULL DEFAULT 1)"
            )
        )
    steps = (insert_needs_no_lock, row, advisory, advisory_and_row, table, none, optimistic, transfer, once_at_a_time)
    for step in steps:
        step(engine)
        print(f"{step.__name__}: done")
    with DbSession(engine) as session:
        print("balances:", [account["balance"] for account in session.fetch_all("SELECT * FROM accounts ORDER BY id")])
    engine.dispose()


if __name__ == "__main__":
    main(sys.argv[1])
