"""INSERT on SQLite: the written row, and the suppressed duplicates."""

import logging

import pytest
from sqlalchemy import Engine
from tests.unit.db.operations import insert, rows, sample

from conquiet.db import DbOperation, DbOperationType, DbWriter, WriteOutcome
from conquiet.errors import DbWriteError

CANARY = "canary-4711"


@pytest.mark.spec("CQ-005.1", "CQ-005.53", "CQ-005.45", "CQ-008.3")
def test_insert_writes_the_payloads_columns(writer: DbWriter, sqlite: Engine) -> None:
    outcome = writer.execute(insert(1, amount=10, status="paid"))

    assert outcome == WriteOutcome(rows=1)
    assert rows(sqlite)[1] | {"amount": 10, "status": "paid"} == rows(sqlite)[1]


@pytest.mark.spec("CQ-005.2", "CQ-005.10", "CQ-005.11", "CQ-008.3")
def test_a_duplicate_is_suppressed_logged_and_counted(
    writer: DbWriter, sqlite: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    writer.execute(insert(1, amount=10, email=CANARY))
    counted = sample("conquiet_db_duplicate_inserts_total", table="orders")

    outcome = writer.execute(insert(1, amount=99, email=CANARY))

    assert outcome == WriteOutcome(rows=0, duplicate=True)
    assert rows(sqlite)[1]["amount"] == 10
    assert sample("conquiet_db_duplicate_inserts_total", table="orders") == counted + 1
    (record,) = [record for record in caplog.records if record.getMessage().startswith("duplicate insert suppressed")]
    assert vars(record)["table"] == "orders"
    assert CANARY not in caplog.text


@pytest.mark.spec("CQ-005.12")
def test_a_duplicate_of_another_unique_key_is_raised(writer: DbWriter, sqlite: Engine) -> None:
    """The requested row does not exist: suppressing the error would lose it."""
    writer.execute(insert(1, email=CANARY))

    with pytest.raises(DbWriteError) as caught:
        writer.execute(insert(2, email=CANARY))

    assert set(rows(sqlite)) == {1}
    assert CANARY not in f"{caught.value} {caught.value!r}"
    assert caught.value.__cause__ is not None


def test_other_integrity_errors_are_raised(writer: DbWriter) -> None:
    with pytest.raises(DbWriteError):
        writer.execute(insert(1, status=None))


def test_an_insert_whose_id_and_payload_disagree_is_refused(writer: DbWriter, sqlite: Engine) -> None:
    """The check whether the row exists would read another row than the one written."""
    with pytest.raises(DbWriteError, match="different rows"):
        writer.execute(DbOperation("orders", DbOperationType.INSERT, 1, {"id": 2}))
    with pytest.raises(DbWriteError, match="no column"):
        writer.execute(DbOperation("orders", DbOperationType.INSERT, 1, {}))
    assert rows(sqlite) == {}
