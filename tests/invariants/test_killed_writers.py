"""kill -9 of a writer at every step: its locks go with it, and only what was committed is there."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import Connection, make_url
from tests.invariants.histories import History, Row, database_facts

from conquiet.config import DbConfig
from conquiet.db import DbWriter, LockStrategy
from conquiet.db.locking.naming import row_lock_name
from conquiet.testing import wait_until

WORKER = Path(__file__).with_name("db_worker.py")
STEPS = ["before lock", "after lock", "before statement", "before commit", "after commit"]
WAYS = ["advisory", "row", "advisory_and_row", "table", "occ"]
WAITING_FOR_A_ROW = text("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
WAITING_FOR_A_TABLE = text(
    "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND state LIKE 'Waiting for table%'"
)


@pytest.fixture
def engine(db_url: str) -> Iterator[Engine]:
    made = create_engine(db_url)
    yield made
    made.dispose()


@pytest.fixture
def admin(db_url: str) -> Iterator[Connection]:
    engine = create_engine(db_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        conn.execute(text("CREATE TABLE counters (id INT PRIMARY KEY, n INT NOT NULL, version INT NOT NULL DEFAULT 1)"))
        conn.execute(text("INSERT INTO counters (id, n) VALUES (1, 0)"))
        yield conn
    engine.dispose()


class Mortals:
    """Writers that stop at a step, one after the other, each a separate process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def reach(self, step: str, way: str, url: str) -> int:
        """Send a writer there; return its process id once it reports the step."""
        assert self._process.stdin is not None
        job = {"url": url, "strategy": way, "row": 1, "step": step}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return int(self._line())

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        assert self._line() == "killed"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def mortals() -> Iterator[Mortals]:
    """One for all tests: each writer is a fork, which saves the start of a Python."""
    made = Mortals()
    yield made
    made.close()


def survivor(engine: Engine, way: str) -> DbWriter:
    """Another writer, which needs the locks of the dead one; with OCC a writer that needs the row."""
    return DbWriter(engine, DbConfig("counters"), LockStrategy.ROW if way == "occ" else LockStrategy(way))


def wait_for_freedom(admin: Connection) -> None:
    name = row_lock_name("conquiet_lock", "counters", 1, default_schema=make_url(str(admin.engine.url)).database)
    wait_until(
        lambda: admin.execute(text("SELECT IS_USED_LOCK(:n)"), {"n": name}).scalar() is None,
        message="a dead writer still holds its advisory lock",
    )


def somebody_waits(admin: Connection) -> bool:
    # Not from innodb_trx: it is a copy that is not renewed while it is read ten times a second.
    _, rows = admin.execute(WAITING_FOR_A_ROW).one()
    return int(rows) + int(admin.execute(WAITING_FOR_A_TABLE).scalar_one()) == 1


def test_a_writer_that_dies_leaves_no_lock_and_no_half_write(
    db_url: str, engine: Engine, admin: Connection, mortals: Mortals, way: str, new_history: Callable[..., History]
) -> None:
    writer = survivor(engine, way)
    expected = 0
    steps = STEPS[2:] if way == "occ" else STEPS
    facts = database_facts(engine)
    history = new_history(
        f"writers of {facts['name']} killed under {way}",
        Row(f"DbWriter, {way} lock", facts["name"], "one writer killed at a time"),
        seed=0,
        promise={},
        servers=[facts],
        points=dict.fromkeys(steps, 1),
    )

    for step in steps:
        history.record("armed", point=step)
        dying = mortals.reach(step, way, db_url)
        history.record("reached", point=step)
        history.record("add", row=1, by=1, ok=step == "after commit")
        history.kill(dying, step)
        mortals.kill(dying)

        wait_for_freedom(admin)
        # The next writer gets every lock of the dead one within its own timeout.
        assert writer.modify(1, lambda row: {"n": row["n"] + 100}).rows == 1, step
        history.record("add", row=1, by=100, ok=True)
        expected += 100 + (step == "after commit")
        assert admin.execute(text("SELECT n FROM counters")).scalar() == expected, step
    history.recovery()  # each step ends with a writer that gets through: nothing is left to be done
    history.record("drained")
    found = admin.execute(text("SELECT n FROM counters")).scalar_one()
    history.record("state", counters={"1": found}, opening=0)
    assert history.judge()["examples"] == {}


def test_a_writer_that_dies_while_the_server_works_for_it_writes_nothing(
    db_url: str, engine: Engine, admin: Connection, mortals: Mortals, way: str
) -> None:
    """The server notices the death of a client only after the statement that waits for a lock."""
    with engine.connect() as other:
        other.execute(text("SELECT n FROM counters WHERE id = 1 FOR UPDATE"))
        dying = mortals.reach("in a statement", way, db_url)
        wait_until(lambda: somebody_waits(admin), message="the writer does not wait for the row")

        mortals.kill(dying)

        other.execute(text("UPDATE counters SET n = 10 WHERE id = 1"))
        other.commit()
    wait_for_freedom(admin)
    assert survivor(engine, way).modify(1, lambda row: {"n": row["n"] + 100}).rows == 1
    assert admin.execute(text("SELECT n FROM counters")).scalar() == 110
