"""Operations: the seed's shape, names checked before any I/O, values never shown."""

from dataclasses import MISSING, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.config import DbConfig
from conquiet.db.models import DbOperation, DbOperationType, WriteOutcome
from conquiet.errors import ConfigurationError


@pytest.mark.spec("CQ-005.3")
def test_there_are_two_operation_types_and_both_are_strings() -> None:
    assert {member.name: member.value for member in DbOperationType} == {"INSERT": "insert", "UPDATE": "update"}
    assert issubclass(DbOperationType, str)


@pytest.mark.spec("CQ-005.4")
def test_an_operation_has_the_fields_of_the_seed() -> None:
    shape = {field.name: field.default for field in fields(DbOperation)}

    assert list(shape) == ["table", "op_type", "id_value", "payload", "metadata"]
    assert shape["metadata"] is None
    assert all(shape[name] is MISSING for name in ("table", "op_type", "id_value", "payload"))


@pytest.mark.parametrize(
    "table", ["", "a b", "a`b", "orders; DROP TABLE x", "a.b.c", "a..b", ".a", "1a", "a" * 65, "täble", "a\n", None, 7]
)
def test_a_hostile_table_name_is_refused_when_the_operation_is_built(table: str) -> None:
    with pytest.raises(ConfigurationError):
        DbOperation(table, DbOperationType.INSERT, 1, {"id": 1})


@given(st.text())
def test_any_text_as_a_column_is_a_plain_identifier_or_refused(column: str) -> None:
    """No name that could leave its backticks gets through."""
    try:
        DbOperation("orders", DbOperationType.INSERT, 1, {column: 1})
    except ConfigurationError:
        return
    assert column.replace("_", "a").replace("$", "a").isalnum()
    assert column.isascii()
    assert not column[0].isdigit()


def test_a_schema_may_stand_before_the_table() -> None:
    assert DbOperation("shop.orders", DbOperationType.INSERT, 1, {"id": 1}).table == "shop.orders"


def test_a_payload_must_be_a_mapping() -> None:
    with pytest.raises(ConfigurationError, match="payload"):
        DbOperation("orders", DbOperationType.INSERT, 1, ["id"])  # type: ignore[arg-type]


def test_the_repr_of_an_operation_shows_no_value() -> None:
    op = DbOperation("orders", DbOperationType.INSERT, "canary-id", {"email": "canary-mail"}, {"trace": "canary-meta"})

    assert "canary" not in repr(op)
    assert "orders" in repr(op)


@pytest.mark.spec("CQ-005.52")
def test_the_config_takes_the_insert_mode_insert_and_no_other() -> None:
    assert DbConfig(table_name="orders", id_column="id", insert_mode="insert").insert_mode == "insert"
    for mode in ("insert_ignore", "upsert", "", None):
        with pytest.raises(ConfigurationError, match="insert_mode"):
            DbConfig("orders", insert_mode=mode)  # type: ignore[arg-type]


def test_an_outcome_has_rows_and_duplicate() -> None:
    assert WriteOutcome(rows=1) == WriteOutcome(1, duplicate=False)
