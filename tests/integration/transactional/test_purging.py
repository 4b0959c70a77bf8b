"""Old rows are deleted in the background: by one host at a time, in short transactions, during inserts."""

import logging
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from conquiet.core.lifecycle import Worker
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError
from conquiet.testing import wait_until
from conquiet.transactional import DatabaseRetention, Inbox, InboxKey, Outbox, Purger, create_tables

logger = logging.getLogger(__name__)
TORTURE = bool(os.environ.get("CONQUIET_TORTURE"))
OLD = int(os.environ.get("CONQUIET_OLD_ROWS", "10000000" if TORTURE else "20000"))
"""``CONQUIET_OLD_ROWS=1000000`` makes the purge of a torture shorter."""

QUICK = DatabaseRetention(interval_s=0.05, share=1.0, parked_s=86_400.0)


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def add_old(engine: Engine, count: int, *, days: int = 31) -> None:
    """Rows that are older than the default retention, written in large transactions."""
    step = 10_000
    for first in range(0, count, step):
        rows = ", ".join(
            f"('old', 'g', '{number:012d}', UTC_TIMESTAMP(6) - INTERVAL {days} DAY)"
            for number in range(first, min(first + step, count))
        )
        with DbSession(engine) as session:
            session.execute(
                f"INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at) VALUES {rows}"
            )


def rows(engine: Engine, table: str = "conquiet_inbox", where: str = "1 = 1") -> int:
    with engine.connect() as connection:
        return int(connection.scalar(text(f"SELECT COUNT(*) FROM {table} WHERE {where}")) or 0)


def test_old_inbox_rows_go_and_young_ones_stay(engine: Engine, inbox: Inbox) -> None:
    add_old(engine, 3_000)
    with DbSession(engine) as session:
        session.execute(
            "INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at) "
            "VALUES ('young', 'g', '1', UTC_TIMESTAMP(6) - INTERVAL 29 DAY)"
        )
        assert inbox.record(session, InboxKey("new", "g", "1"))

    with Purger(engine, inbox=inbox, retention=QUICK):
        wait_until(lambda: rows(engine) == 2)

    assert rows(engine, where="source IN ('young', 'new')") == 2


def test_parked_rows_go_by_their_own_age_and_waiting_ones_stay(engine: Engine) -> None:
    outbox = Outbox()
    with DbSession(engine) as session:
        for _ in range(3):
            outbox.add(session, "orders", {"n": 1})
        session.execute("UPDATE conquiet_outbox SET created_at = UTC_TIMESTAMP(6) - INTERVAL 2 DAY")
        session.execute("UPDATE conquiet_outbox SET parked = 1 ORDER BY seq LIMIT 2")
        outbox.add(session, "orders", {"n": 2})

    by_default = Purger(engine, outbox=outbox).purge_now()
    deleted = Purger(engine, outbox=outbox, retention=QUICK).purge_now()

    assert (by_default, deleted) == (0, 2)
    assert rows(engine, "conquiet_outbox", "parked = 0") == 2


def test_one_host_at_a_time_purges(engine: Engine, inbox: Inbox) -> None:
    add_old(engine, 100)
    first, second = (Purger(engine, inbox=inbox, retention=QUICK) for _ in range(2))
    with first._exclusive() as ours:
        assert ours is not None
        assert second.purge_now() == 0

    assert second.purge_now() == 100


def test_a_host_whose_connection_was_killed_blocks_no_other(engine: Engine, inbox: Inbox) -> None:
    add_old(engine, 100)
    first, second = (Purger(engine, inbox=inbox, retention=QUICK) for _ in range(2))
    with first._exclusive() as ours:
        assert ours is not None
        with engine.connect() as connection:
            holder = connection.scalar(text("SELECT IS_USED_LOCK(:name)"), {"name": first._lock})
            connection.execute(text(f"KILL {holder}"))
        wait_until(lambda: second.purge_now() == 100)


def test_the_pool_is_the_same_after_a_pass(engine: Engine, inbox: Inbox) -> None:
    """The lock's connection has a short timeout: returned to the pool, it would break under its next user."""
    Purger(engine, inbox=inbox).purge_now()

    with engine.connect() as connection:
        assert connection.scalar(text("SELECT @@wait_timeout")) > 120
        # The connection is closed, and the server releases the lock when it notices that: a moment later.
        name = {"name": Purger(engine, inbox=inbox)._lock}
        wait_until(lambda: connection.scalar(text("SELECT IS_FREE_LOCK(:name)"), name) == 1)


def test_a_database_that_is_away_is_reported_once_and_purged_later(
    engine: Engine, inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    with DbSession(engine) as session:
        session.execute("RENAME TABLE conquiet_inbox TO away")
    with caplog.at_level(logging.WARNING), Purger(engine, inbox=inbox, retention=QUICK) as purger:
        wait_until(lambda: "failed" in purger.health().reason)
        with DbSession(engine) as session:
            session.execute("RENAME TABLE away TO conquiet_inbox")
        add_old(engine, 10)
        wait_until(lambda: rows(engine) == 0)
        wait_until(lambda: purger.health().ready)

    assert len([record for record in caplog.records if "purg" in record.message]) == 1


def test_a_busy_worker_leaves_the_purge_to_others(engine: Engine, inbox: Inbox) -> None:
    add_old(engine, 10)
    asked: list[bool] = []

    def is_idle() -> bool:
        asked.append(True)
        return False

    with Purger(engine, inbox=inbox, retention=DatabaseRetention(interval_s=0.02), is_idle=is_idle):
        wait_until(lambda: len(asked) >= 3)
        assert rows(engine) == 10
        wait_until(lambda: rows(engine) == 0)  # after ten intervals at most


def test_a_purger_is_a_worker(engine: Engine, inbox: Inbox) -> None:
    purger = Purger(engine, inbox=inbox)
    assert isinstance(purger, Worker)
    assert purger.health().reason == "not started"
    thread = threading.Thread(target=purger.run)
    thread.start()
    wait_until(lambda: purger.health().ready)
    purger.stop()
    thread.join(10)
    assert not thread.is_alive()
    purger.close()
    with pytest.raises(ConfigurationError):
        Purger(engine)
    with pytest.raises(ConfigurationError):
        DatabaseRetention(share=0)


def insert_for(engine: Engine, inbox: Inbox, seconds: float, name: str) -> list[float]:
    """Insert inbox rows for this time, one transaction each; return the durations."""
    took: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        with DbSession(engine) as session:
            inbox.record(session, InboxKey("new", "g", f"{name}-{len(took)}"))
        took.append(time.monotonic() - began)
    return took


@pytest.fixture
def purging(engine: Engine, inbox: Inbox) -> Iterator[Callable[[], Purger]]:
    made: list[Purger] = []

    def make() -> Purger:
        purger = Purger(engine, inbox=inbox, retention=DatabaseRetention(interval_s=0.01))
        made.append(purger)
        return purger

    yield make
    for purger in made:
        purger.close()


@pytest.mark.timeout(600 + OLD // 2_000)
def test_inserts_continue_during_a_purge(engine: Engine, inbox: Inbox, purging: Callable[[], Purger]) -> None:
    """Windows with and without a purge in turn, so that the machine's other work meets both alike."""
    add_old(engine, OLD)
    window_s = 5.0 if TORTURE else 0.5
    without: list[float] = []
    beside: list[float] = []
    for turn in range(12 if TORTURE else 4):
        without += insert_for(engine, inbox, window_s, f"a{turn}")
        before = rows(engine, where="source = 'old'")
        with purging():
            beside += insert_for(engine, inbox, window_s, f"b{turn}")
        assert before == 0 or rows(engine, where="source = 'old'") < before
    p99 = [statistics.quantiles(took, n=100)[98] * 1000 for took in (without, beside)]
    logger.info(
        "%d and %d inserts, p99 %.2f ms without and %.2f ms beside a purge that deleted %d rows",
        len(without), len(beside), *p99, OLD - rows(engine, where="source = 'old'"),
    )  # fmt: skip

    assert rows(engine, where="source = 'new'") == len(without) + len(beside)


def test_purging_works_on_sqlite(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/db.sqlite")
    create_tables(engine)
    with DbSession(engine) as session:
        session.execute(
            "INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at) "
            "VALUES ('old', 'g', '1', strftime('%Y-%m-%d %H:%M:%f', 'now', '-31 days')), "
            "('new', 'g', '2', strftime('%Y-%m-%d %H:%M:%f', 'now', '-29 days'))"
        )

    assert Purger(engine, inbox=Inbox()).purge_now() == 1
    engine.dispose()
