"""Many processes change the same rows. Under every strategy nothing is lost; under NONE something is.

``CONQUIET_TORTURE=1`` does 100 times as much (100,000 updates for each strategy). Where both server
flavours are there, MySQL gets half of it: the budget of ``make test`` is shared.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection
from tests.invariants.histories import History, Row, database_facts

from conquiet.testing.discovery import MySQLFlavour, available_mysql_flavours

WORKER = Path(__file__).with_name("db_worker.py")
SAFE = ["advisory", "row", "advisory_and_row", "table", "occ"]
SCALE = 40 if os.environ.get("CONQUIET_TORTURE") == "1" else 0.4
ROWS = 4
BALANCE = 1_000


@pytest.fixture
def admin(db_url: str) -> Iterator[Connection]:
    engine = create_engine(db_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        conn.execute(text("CREATE TABLE counters (id INT PRIMARY KEY, n INT NOT NULL, version INT NOT NULL DEFAULT 1)"))
        rows = [{"id": i, "n": BALANCE} for i in range(1, ROWS + 1)]
        conn.execute(text("INSERT INTO counters (id, n) VALUES (:id, :n)"), rows)
        conn.execute(text("CREATE TABLE events (id INT PRIMARY KEY, payload TEXT, email VARCHAR(50) UNIQUE)"))
        yield conn
    engine.dispose()


@pytest.fixture
def share(conquiet_mysql_flavour: MySQLFlavour | None) -> float:
    """The share of the volume for the current flavour."""
    beside_mariadb = len(available_mysql_flavours()) > 1 and conquiet_mysql_flavour is MySQLFlavour.MYSQL
    return SCALE * (0.5 if beside_mariadb and SCALE < 1 else 1.0)


class Workers:
    """Processes that write concurrently. One Python for all jobs of this file: each worker is a fork of it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, **job: Any) -> list[dict[str, int]]:
        """Let them do a job of db_worker.py and return what they reported."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"history": "", **job}) + "\n")
        self._process.stdin.flush()
        reports: list[dict[str, int]] = json.loads(self._process.stdout.readline())
        assert isinstance(reports, list), reports
        return reports

    def close(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def crew() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.close()


def changes(admin: Connection) -> dict[str, int]:
    return {str(row.id): row.n - BALANCE for row in admin.execute(text("SELECT id, n FROM counters"))}


def acknowledged(reports: list[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report)  # adds, also what is negative
    return {str(row): total[str(row)] for row in range(1, ROWS + 1)}


def a_history(new_history: Callable[..., History], admin: Connection, strategy: str) -> History:
    facts = database_facts(admin.engine)
    row = Row(f"DbWriter and DbSession, {strategy} lock", facts["name"], "4, 16 and 8 processes")
    name = f"updates of {facts['name']} under {strategy}"
    return new_history(name, row, seed=0, promise={}, servers=[facts])


def finish(history: History, admin: Connection) -> dict[str, Any]:
    """Add the rows of the table, and judge."""
    history.recovery()  # there are no faults here: the writers have just ended
    history.record("drained")
    counters = {row: n + BALANCE for row, n in changes(admin).items()}
    history.record("state", counters=counters, opening=BALANCE)
    return history.judge(publish="none" not in history.storm)


@pytest.mark.spec("CQ-001.8", "CQ-005.16", "CQ-008.8")
@pytest.mark.parametrize("strategy", SAFE)
def test_no_update_is_lost(
    db_url: str, admin: Connection, crew: Workers, strategy: str, share: float, new_history: Callable[..., History]
) -> None:
    """1,000 row updates: counters by 4 and by 16 processes, then transfers between accounts by 8."""
    history = a_history(new_history, admin, strategy)
    place: dict[str, Any] = {"url": db_url, "strategy": strategy, "rows": ROWS, "history": str(history.folder)}
    for workers, times in ((4, round(300 * share)), (16, round(50 * share))):
        before = changes(admin)
        reports = crew.run(task="count", workers=workers, times=times, **place)
        after = changes(admin)
        assert sum(acknowledged(reports).values()) == workers * times
        assert {row: after[row] - before[row] for row in after} == acknowledged(reports)

    before = changes(admin)
    reports = crew.run(task="transfer", workers=8, times=round(32 * share), **place)
    after = changes(admin)
    assert {row: after[row] - before[row] for row in after} == acknowledged(reports)
    assert sum(after.values()) == sum(before.values())
    assert finish(history, admin)["examples"] == {}


@pytest.mark.spec("CQ-005.15", "CQ-006.19")
def test_without_a_lock_updates_are_lost_so_this_test_can_see_it(
    db_url: str, admin: Connection, crew: Workers, new_history: Callable[..., History]
) -> None:
    history = a_history(new_history, admin, "none")
    folder = str(history.folder)
    reports = crew.run(task="count", url=db_url, strategy="none", workers=4, times=300, rows=1, history=folder)

    reported, happened = sum(acknowledged(reports).values()), changes(admin)["1"]
    assert reported == 1_200
    assert happened < reported
    assert "lost" in finish(history, admin)["anomalies"]


@pytest.mark.spec("CQ-001.8", "CQ-005.2", "CQ-005.9", "CQ-008.7")
def test_the_same_ids_from_eight_writers_give_one_row_each(db_url: str, admin: Connection, crew: Workers) -> None:
    ids = round(500 * SCALE)

    reports = crew.run(task="insert", url=db_url, workers=8, times=ids)

    assert admin.execute(text("SELECT COUNT(*), COUNT(DISTINCT id) FROM events")).one() == (ids, ids)
    assert sum(report["first"] for report in reports) == ids
    assert sum(report["duplicate"] for report in reports) == 7 * ids
