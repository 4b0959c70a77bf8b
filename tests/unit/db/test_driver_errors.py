"""Errors of drivers without a server: the SQLSTATE, and names of missing tables and columns in error texts."""

import pymysql
import pytest
from sqlalchemy.exc import DBAPIError

from conquiet.db.driver_errors import sqlstate_of
from conquiet.db.errors import DbErrorKind, OperationInfo, as_write_error, fault_of, outcome_unknown
from conquiet.errors import CommitUnknownError, ConflictError, DatabaseUnavailableError, DbWriteError

COMMITTING = OperationInfo("the session's transaction")


class DriverError(Exception):
    """Looks like an error of psycopg."""

    def __init__(self, sqlstate: str | None, message: str = "text of the server, in its language") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


def wrapped(original: Exception, *, lost: bool = False) -> DBAPIError:
    return DBAPIError("SELECT 1", {}, original, connection_invalidated=lost)


@pytest.mark.parametrize(
    ("sqlstate", "fault", "kind"),
    [
        ("23505", DbErrorKind.DUPLICATE, DbWriteError),
        ("40001", DbErrorKind.CONFLICT, ConflictError),
        ("40P01", DbErrorKind.CONFLICT, ConflictError),
        ("55P03", DbErrorKind.LOCK_TIMEOUT, ConflictError),
        ("57014", DbErrorKind.INTERRUPTED, DbWriteError),
        ("57P01", DbErrorKind.GONE, DatabaseUnavailableError),
        ("25P03", DbErrorKind.GONE, DatabaseUnavailableError),
        ("08006", DbErrorKind.GONE, DatabaseUnavailableError),
        ("08P01", DbErrorKind.GONE, DatabaseUnavailableError),
        ("57P03", DbErrorKind.UNREACHABLE, DatabaseUnavailableError),
        ("53300", DbErrorKind.UNREACHABLE, DatabaseUnavailableError),
        ("58030", DbErrorKind.UNREACHABLE, DatabaseUnavailableError),
        ("25006", DbErrorKind.READ_ONLY, DatabaseUnavailableError),
        ("53100", DbErrorKind.READ_ONLY, DatabaseUnavailableError),
        ("23503", DbErrorKind.OTHER, DbWriteError),
        ("42601", DbErrorKind.OTHER, DbWriteError),
    ],
)
def test_each_code_has_its_kind_of_error(sqlstate: str, fault: DbErrorKind, kind: type[DbWriteError]) -> None:
    error = wrapped(DriverError(sqlstate))

    translated = as_write_error(error, OperationInfo("insert", "orders"))

    assert fault_of(error) is fault
    assert type(translated) is kind
    assert (translated.sqlstate, translated.errno) == (sqlstate, None)
    assert sqlstate in str(translated)
    assert "text of the server" not in str(translated)


@pytest.mark.parametrize("sqlstate", ["40001", "23505", "53100"])
def test_an_answer_of_the_server_to_commit_is_not_unknown(sqlstate: str) -> None:
    error = wrapped(DriverError(sqlstate))

    assert not outcome_unknown(error)
    assert not isinstance(as_write_error(error, COMMITTING, committing=True), CommitUnknownError)


@pytest.mark.parametrize("sqlstate", [None, "57P01", "08006"])
def test_a_lost_connection_during_commit_is_unknown(sqlstate: str | None) -> None:
    """57P01 may come after the commit: a backend that is terminated while it waits for a standby has committed."""
    error = wrapped(DriverError(sqlstate), lost=True)

    assert isinstance(as_write_error(error, COMMITTING, committing=True), CommitUnknownError)


def test_the_code_is_found_in_the_errors_of_each_driver() -> None:
    class Psycopg2Error(Exception):
        pgcode = "40001"

    class MySqlConnectorError(Exception):
        """Has a SQLSTATE of MySQL, which means other things."""

        sqlstate = "23000"

    assert sqlstate_of(wrapped(Psycopg2Error("x"))) == "40001"
    assert sqlstate_of(MySqlConnectorError(1062, "duplicate")) is None
    assert sqlstate_of(DriverError("not a code")) is None
    assert sqlstate_of(ValueError("x")) is None


@pytest.mark.parametrize(
    ("sqlstate", "message", "expected"),
    [
        ("42P01", 'relation "orderz" does not exist', "no table orderz"),
        ("42P01", "la relation « orderz » n'existe pas", "no table orderz"),
        ("42P01", "Relation »orderz« existiert nicht", "no table orderz"),
        ("42703", 'column "colour" of relation "orders" does not exist', "no column colour"),
        ("42703", "column o.colour does not exist", "the database refused it"),
        ("25P02", "current transaction is aborted", "an earlier statement of this transaction failed"),
    ],
)
def test_a_missing_name_is_taken_out_of_the_text_in_each_language(sqlstate: str, message: str, expected: str) -> None:
    assert expected in str(as_write_error(wrapped(DriverError(sqlstate, message)), OperationInfo("insert", "orders")))


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
