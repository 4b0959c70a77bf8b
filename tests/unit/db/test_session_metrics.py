"""Writes through a session are counted: as successes only once they are committed."""

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Engine, text

from conquiet.db import DbSession, insert, insert_idempotent, metrics, occ_update
from conquiet.db.session_metrics import WriteCounts, first_keyword
from conquiet.errors import ConflictError, DbWriteError


class Counts:
    """Changes of the counters since this object was made."""

    def __init__(self, table: str, op_type: str) -> None:
        self._labels = {"table": table, "op_type": op_type}
        self._before = self._now()

    def _now(self) -> tuple[float, float, float]:
        def sample(name: str, **more: str) -> float:
            return REGISTRY.get_sample_value(name, self._labels | more) or 0.0

        return (
            sample("conquiet_db_write_total", status="success"),
            sample("conquiet_db_write_total", status="error"),
            sample("conquiet_db_write_latency_seconds_count"),
        )

    def moved(self) -> tuple[float, ...]:
        """Successes, errors, times recorded."""
        return tuple(now - before for now, before in zip(self._now(), self._before, strict=True))


INSERT = "INSERT INTO orders (id, amount) VALUES (:id, 1)"


@pytest.mark.spec("CQ-001.12")
@pytest.mark.parametrize(
    ("statement", "op_type"),
    [
        ("INSERT INTO orders (id) VALUES (9)", "insert"),
        ("  /* why */ update orders SET amount = 1", "update"),
        ("DELETE FROM orders", "delete"),
        ("REPLACE INTO orders (id) VALUES (9)", "replace"),
        ("CREATE TABLE other (id INTEGER)", "other"),
    ],
)
def test_each_statement_of_a_session_is_counted_by_its_keyword(sqlite: Engine, statement: str, op_type: str) -> None:
    counts = Counts("(session)", op_type)

    with DbSession(sqlite) as session:
        session.execute(statement)
        assert counts.moved() == (0, 0, 1), "not a success before COMMIT"

    assert counts.moved() == (1, 0, 1)


@pytest.mark.spec("CQ-001.12")
def test_a_write_that_is_rolled_back_or_fails_counts_as_an_error(sqlite: Engine) -> None:
    counts = Counts("(session)", "insert")

    with pytest.raises(RuntimeError), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block raises
        session.execute(INSERT, {"id": 1})
        raise RuntimeError
    assert counts.moved() == (0, 1, 1)

    with DbSession(sqlite) as session:
        session.execute(INSERT, [{"id": 1}, {"id": 2}, {"id": 3}])
        with pytest.raises(DbWriteError):
            session.execute(INSERT, {"id": 3})
    assert counts.moved() == (3, 2, 3)


@pytest.mark.spec("CQ-001.12")
def test_a_write_that_returns_rows_is_counted_and_a_read_is_not(sqlite: Engine) -> None:
    inserts, others, reads = Counts("(session)", "insert"), Counts("(session)", "other"), Counts("(session)", "select")

    with DbSession(sqlite) as session:
        assert session.execute_scalar(text("INSERT INTO orders (id) VALUES (1) RETURNING id")) == 1
        assert session.fetch_one("INSERT INTO orders (id) VALUES (2) RETURNING id") == {"id": 2}
        assert session.fetch_all("INSERT INTO orders (id) VALUES (3), (4) RETURNING id") == [{"id": 3}, {"id": 4}]
        session.execute_scalar("SELECT id FROM orders")
        session.fetch_one("SELECT * FROM orders WHERE id = 1")
        session.fetch_all("SELECT * FROM orders")

    assert inserts.moved() == (3, 0, 3)
    assert others.moved() == reads.moved() == (0, 0, 0)


@pytest.mark.spec("CQ-001.12")
def test_the_helpers_count_under_the_table_and_only_once(sqlite: Engine) -> None:
    inserts, updates = Counts("orders", "insert"), Counts("orders", "update")
    session_inserts, session_updates = Counts("(session)", "insert"), Counts("(session)", "update")
    duplicates = REGISTRY.get_sample_value("conquiet_db_duplicate_inserts_total", {"table": "orders"}) or 0.0

    with DbSession(sqlite) as session:
        assert insert_idempotent(session, "orders", 1, {"amount": 1})
        assert not insert_idempotent(session, "orders", 1, {"amount": 1})
        occ_update(session, "orders", 1, {"amount": 2}, expected_version=1)
    assert inserts.moved() == (2, 0, 2), "a duplicate is a success, as with DbWriter"
    assert updates.moved() == (1, 0, 1)
    assert REGISTRY.get_sample_value("conquiet_db_duplicate_inserts_total", {"table": "orders"}) == duplicates + 1

    with pytest.raises(ConflictError), DbSession(sqlite) as session:
        occ_update(session, "orders", 1, {"amount": 2}, expected_version=1)
    assert updates.moved() == (1, 1, 2)
    assert session_inserts.moved() == session_updates.moved() == (0, 0, 0)


def test_a_broken_metric_breaks_no_write_of_a_session(sqlite: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Broken:
        def labels(self, *_: str) -> None:
            asked.append("labels")
            raise RuntimeError

    for cached in (metrics._written, metrics._took):
        cached.cache_clear()
    monkeypatch.setattr(metrics, "DB_WRITE_TOTAL", Broken())
    monkeypatch.setattr(metrics, "DB_WRITE_LATENCY_SECONDS", Broken())
    monkeypatch.setattr(insert, "DB_DUPLICATE_INSERTS_TOTAL", Broken())

    with DbSession(sqlite) as session:
        session.execute(INSERT, {"id": 1})
        assert not insert_idempotent(session, "orders", 1, {})
        assert session.execute_scalar("SELECT COUNT(*) FROM orders") == 1

    assert len(asked) >= 4, "no metric was recorded: the test would prove nothing"


@pytest.mark.parametrize(
    ("statement", "keyword"),
    [
        ("SELECT 1", "select"),
        ("\n\t insert INTO t", "insert"),
        ("-- a note\nUPDATE t", "update"),
        ("# a note\nUPDATE t", "update"),
        ("/* a\nnote */ DELETE FROM t", "delete"),
        ("(SELECT 1) UNION (SELECT 2)", "select"),
        ("/*! INSERT */ 1", ""),
        ("", ""),
        ("-- only a note", ""),
    ],
)
def test_the_keyword_is_found_behind_blanks_comments_and_brackets(statement: str, keyword: str) -> None:
    assert first_keyword(statement) == keyword


def test_a_write_is_counted_at_one_end_of_its_session_only() -> None:
    counts = Counts("counted_once", "insert")
    writes = WriteCounts()
    with writes.measure("counted_once", "insert"):
        pass

    writes.flush(committed=True)
    writes.flush(committed=False)

    assert counts.moved() == (1, 0, 1)
