"""The seed's helpers, and that none of them can fail a write."""

from inspect import signature

import pytest
from prometheus_client import REGISTRY
from sqlalchemy.engine import Engine

from conquiet.config import DbConfig
from conquiet.db import DbOperation, DbOperationType, DbWriter, insert, metrics
from conquiet.metrics import registry


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.mark.spec("CQ-005.41", "CQ-007.3")
def test_a_write_is_counted_by_outcome_and_timed() -> None:
    assert list(signature(metrics.observe_db_write).parameters) == ["table", "op_type", "status", "latency_s"]
    counted = sample("conquiet_db_write_total", table="m1", op_type="insert", status="error")
    timed = sample("conquiet_db_write_latency_seconds_count", table="m1", op_type="insert")

    metrics.observe_db_write("m1", "insert", "error", 0.5)

    assert sample("conquiet_db_write_total", table="m1", op_type="insert", status="error") == counted + 1
    assert sample("conquiet_db_write_latency_seconds_count", table="m1", op_type="insert") == timed + 1
    assert vars(metrics)["DB_WRITE_TOTAL"] is registry.DB_WRITE_TOTAL


@pytest.mark.spec("CQ-005.42")
def test_a_lock_is_timed_and_counted_if_not_acquired() -> None:
    assert list(signature(metrics.observe_lock_acquisition).parameters) == ["strategy", "latency_s", "success"]
    before = sample("conquiet_db_lock_failures_total", strategy="m2")

    metrics.observe_lock_acquisition("m2", 0.5, True)  # noqa: FBT003
    metrics.observe_lock_acquisition("m2", 0.5, False)  # noqa: FBT003

    assert sample("conquiet_db_lock_failures_total", strategy="m2") == before + 1
    assert sample("conquiet_db_lock_acquire_latency_seconds_count", strategy="m2") >= 2


def test_a_broken_metric_breaks_no_write(sqlite: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Broken:
        def labels(self, *_: str) -> None:
            asked.append("labels")
            raise RuntimeError

    monkeypatch.setattr(metrics, "DB_WRITE_TOTAL", Broken())
    monkeypatch.setattr(metrics, "DB_WRITE_LATENCY_SECONDS", Broken())
    monkeypatch.setattr(insert, "DB_DUPLICATE_INSERTS_TOTAL", Broken())
    writer = DbWriter(sqlite, DbConfig("m3"))
    with sqlite.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE m3 (id INTEGER PRIMARY KEY)")

    written = [writer.execute(DbOperation("m3", DbOperationType.INSERT, 1, {"id": 1})) for _ in range(2)]

    assert [outcome.rows for outcome in written] == [1, 0]
    assert len(asked) >= 3, "no metric was recorded: the test would prove nothing"
