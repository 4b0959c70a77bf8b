"""kill -9 of a writer at every step: its locks go with it, and only what was committed is there."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection, make_url

from conquiet.config import DbConfig
from conquiet.db import DbWriter, LockStrategy
from conquiet.db.locking.naming import row_lock_name
from conquiet.testing import wait_until

WORKER = Path(__file__).with_name("db_worker.py")
STEPS = ["before lock", "after lock", "before statement", "before commit", "after commit"]


@pytest.fixture
def admin(db_url: str) -> Iterator[Connection]:
    engine = create_engine(db_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        yield conn
    engine.dispose()


def killed_at(step: str, strategy: LockStrategy, url: str, row: int) -> None:
    job = {"task": "pause_at", "url": url, "strategy": strategy.value, "workers": 1, "step": step, "row": row}
    # The worker forks; the session is what is killed, all of it at once.
    with subprocess.Popen(
        [sys.executable, str(WORKER), json.dumps(job)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        subprocess.run(["kill", "-9", "--", f"-{process.pid}"], check=True)
        assert line == "reached\n"


@pytest.mark.parametrize("strategy", [LockStrategy.ADVISORY_AND_ROW, LockStrategy.TABLE])
def test_a_writer_that_dies_leaves_no_lock_and_no_half_write(
    db_url: str, admin: Connection, strategy: LockStrategy
) -> None:
    admin.execute(text("CREATE TABLE counters (id INT PRIMARY KEY, n INT NOT NULL)"))
    admin.execute(text("INSERT INTO counters VALUES (1, 0)"))
    name = row_lock_name("conquiet_lock", "counters", 1, default_schema=make_url(db_url).database)
    engine = create_engine(db_url)
    writer = DbWriter(engine, DbConfig("counters"), strategy)
    expected = 0

    for step in STEPS:
        killed_at(step, strategy, db_url, 1)

        wait_until(lambda: admin.execute(text("SELECT IS_USED_LOCK(:n)"), {"n": name}).scalar() is None)
        # Whatever the dead one held, the next writer gets within its own timeout.
        assert writer.modify(1, lambda row: {"n": row["n"] + 100}).rows == 1
        expected += 100 + (step == "after commit")
        assert admin.execute(text("SELECT n FROM counters")).scalar() == expected
    engine.dispose()
