"""Names of missing tables and columns in error texts."""

import pymysql
import pytest

from conquiet.db.errors import OperationInfo, as_write_error

INFO = OperationInfo("update", "orders")
CANARY = "canary-4711"


@pytest.mark.parametrize(
    "text",
    ["Table 'shop.orders_2' doesn't exist", "Tabelle 'shop.orders_2' existiert nicht", "A 'shop.orders_2' tabla nincs"],
)
def test_a_missing_table_is_named_in_every_language(text: str) -> None:
    error = as_write_error(pymysql.err.ProgrammingError(1146, text), OperationInfo("a statement"))

    assert "there is no table shop.orders_2;" in str(error)
    assert error.errno == 1146


def test_a_missing_column_is_named_only_where_conquiet_built_the_statement() -> None:
    """In SQL of the caller it may be a value that was pasted in without quotes."""
    unknown = pymysql.err.OperationalError(1054, "Unknown column 'emial' in 'field list'")

    assert "no column emial;" in str(as_write_error(unknown, INFO))
    assert "emial" not in str(as_write_error(unknown, OperationInfo("a statement of the session")))


def test_only_a_name_is_taken_out_of_a_text() -> None:
    odd = pymysql.err.ProgrammingError(1146, f"Table '{CANARY} jane@example.com' doesn't exist")

    assert CANARY not in str(as_write_error(odd, OperationInfo("a statement")))
    assert CANARY not in str(as_write_error(pymysql.err.DataError(1406, f"'{CANARY}' is too long"), INFO))
