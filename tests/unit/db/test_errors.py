"""Error numbers to named faults: numbers only, both drivers alike."""

import sqlite3

import pymysql
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError, OperationalError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from conquiet.db.driver_errors import number_of
from conquiet.db.errors import DbErrorKind, OperationInfo, as_write_error, fault_of, outcome_unknown
from conquiet.errors import (
    CommitUnknownError,
    ConflictError,
    DatabaseUnavailableError,
    DbWriteError,
    InfrastructureError,
)

INFO = OperationInfo("update", "orders")
CANARY = "canary-4711"


class MySQLdbError(Exception):
    """mysqlclient's errors carry number and text like PyMySQL's."""


def driver_error(number: int, *, kind: type[Exception] = pymysql.err.OperationalError) -> OperationalError:
    return OperationalError("UPDATE …", {"p0": CANARY}, kind(number, f"text with {CANARY}"))


@pytest.mark.parametrize("kind", [pymysql.err.OperationalError, MySQLdbError])
@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (1062, DbErrorKind.DUPLICATE),
        (1048, DbErrorKind.OTHER),  # NOT NULL, an IntegrityError to the driver just like 1062
        (1452, DbErrorKind.OTHER),  # foreign key, the same
        (1213, DbErrorKind.CONFLICT),
        (1020, DbErrorKind.CONFLICT),
        (1206, DbErrorKind.CONFLICT),
        (3058, DbErrorKind.CONFLICT),
        (3101, DbErrorKind.CONFLICT),
        (1205, DbErrorKind.LOCK_TIMEOUT),
        (3572, DbErrorKind.LOCK_TIMEOUT),
        (1317, DbErrorKind.INTERRUPTED),
        (1969, DbErrorKind.INTERRUPTED),
        (3024, DbErrorKind.INTERRUPTED),
        *((number, DbErrorKind.GONE) for number in (1158, 1159, 1160, 1161, 2027, 3169)),
        (2006, DbErrorKind.GONE),
        (2013, DbErrorKind.GONE),
        (2014, DbErrorKind.GONE),
        (2055, DbErrorKind.GONE),
        (4031, DbErrorKind.GONE),
        (1927, DbErrorKind.GONE),
        (1053, DbErrorKind.GONE),
        (0, DbErrorKind.GONE),
        (2003, DbErrorKind.UNREACHABLE),
        (1045, DbErrorKind.UNREACHABLE),
        (1064, DbErrorKind.OTHER),
    ],
)
def test_numbers_become_faults_whichever_driver_raised_them(
    number: int, fault: DbErrorKind, kind: type[Exception]
) -> None:
    error = driver_error(number, kind=kind)

    assert (number_of(error), fault_of(error)) == (number, fault)
    assert fault_of(kind(number, "raw, not wrapped by SQLAlchemy")) is fault


def test_sqlalchemy_calling_a_connection_dead_is_enough() -> None:
    error = OperationalError("SELECT 1", {}, pymysql.err.OperationalError(9999, "?"), connection_invalidated=True)

    assert fault_of(error) is DbErrorKind.GONE


def test_error_texts_are_not_read() -> None:
    """They are translated by the server and quote values."""
    assert fault_of(driver_error(1064)) is DbErrorKind.OTHER
    assert fault_of(RuntimeError("Duplicate entry; Deadlock found; Lost connection")) is DbErrorKind.OTHER
    assert number_of(RuntimeError("x")) is None
    assert number_of(RuntimeError(True)) is None  # noqa: FBT003
    assert number_of(RuntimeError()) is None


def test_an_exhausted_pool_is_not_a_lost_connection() -> None:
    assert fault_of(PoolTimeoutError("QueuePool limit")) is DbErrorKind.POOL_EXHAUSTED


def test_sqlite_faults_are_recognized_by_their_codes() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n TEXT UNIQUE, m TEXT NOT NULL)")
    connection.execute("INSERT INTO t VALUES (1, 'a', 'm')")

    def fault(statement: str) -> DbErrorKind:
        with pytest.raises(sqlite3.Error) as caught:
            connection.execute(statement)
        return fault_of(IntegrityError(statement, {}, caught.value))

    assert fault("INSERT INTO t VALUES (1, 'b', 'm')") is DbErrorKind.DUPLICATE
    assert fault("INSERT INTO t VALUES (2, 'a', 'm')") is DbErrorKind.DUPLICATE
    assert fault("INSERT INTO t VALUES (3, 'c', NULL)") is DbErrorKind.OTHER
    assert fault("SELECT nothing") is DbErrorKind.OTHER
    connection.close()


def test_a_busy_sqlite_is_a_conflict() -> None:
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY_SNAPSHOT

    assert fault_of(busy) is DbErrorKind.CONFLICT


@pytest.mark.parametrize(
    ("number", "committing", "kind"),
    [
        (2013, True, CommitUnknownError),
        (2006, True, CommitUnknownError),
        (2013, False, DatabaseUnavailableError),  # before COMMIT the server rolls back when the connection ends
        (1213, True, ConflictError),  # a reply proves that it did not commit
        (1205, False, ConflictError),
        (1062, True, DbWriteError),
        (1317, True, DbWriteError),
        (2003, False, DatabaseUnavailableError),  # no server was there
        (2026, True, CommitUnknownError),  # a TLS connection that broke in the middle, to libmariadb
        (2003, True, CommitUnknownError),  # there was a connection, so this proves nothing
        (2012, True, CommitUnknownError),
        (2999, True, CommitUnknownError),  # unknown here, but raised by the client library and not a reply
        (-1, True, CommitUnknownError),
        (1045, True, DatabaseUnavailableError),
        (1053, True, CommitUnknownError),
        (4025, True, DbWriteError),  # MariaDB's check constraint
    ],
)
def test_only_a_reply_that_is_missing_during_the_commit_is_unknown(
    number: int,
    committing: bool,  # noqa: FBT001 - a parameter of the test
    kind: type[DbWriteError],
) -> None:
    error = as_write_error(driver_error(number), INFO, committing=committing)

    assert type(error) is kind
    assert (error.errno, error.table, error.operation) == (number, "orders", "update")


class TimeLimitError(Exception):
    """An exception of a signal handler, raised at any place."""


@pytest.mark.parametrize(
    "error",
    [
        TimeLimitError("soft limit"),
        TimeLimitError(1062),  # a number that is not the server's
        pymysql.err.InternalError("Packet sequence number wrong - got 45 expected 1"),
        OperationalError("INSERT …", {}, pymysql.err.InternalError("Packet sequence number wrong - got 45 expected 1")),
        OSError(104, "reset"),
    ],
)
def test_any_error_in_place_of_the_commits_reply_is_unknown(error: Exception) -> None:
    assert outcome_unknown(error)
    assert type(as_write_error(error, INFO, committing=True)) is CommitUnknownError
    assert type(as_write_error(error, INFO)) is DbWriteError


UNAVAILABLE = (
    *(0, 1053, 1158, 1159, 1160, 1161, 1927, 2006, 2013, 2014, 2027, 2055, 3169, 4031),  # the connection was lost
    *(1040, 1045, 1047, 1129, 1130, 1135, 1152, 1184, 1203, 1226, 2002, 2003, 2005, 2012, 2026, 2061, 3032),  # none
    *(1021, 1290, 1792, 1836, 1874),  # read-only, or the disk is full
)


@pytest.mark.parametrize("kind", [pymysql.err.OperationalError, MySQLdbError])
@pytest.mark.parametrize("number", UNAVAILABLE)
def test_an_unavailable_or_read_only_database_is_an_infrastructure_error(number: int, kind: type[Exception]) -> None:
    for error in (driver_error(number, kind=kind), kind(number, CANARY)):
        ours = as_write_error(error, INFO)

        assert type(ours) is DatabaseUnavailableError
        assert isinstance(ours, InfrastructureError)
        assert (ours.errno, ours.table, ours.operation) == (number, "orders", "update")
        assert CANARY not in f"{ours} {ours!r}"


@pytest.mark.parametrize("number", [1048, 1054, 1062, 1064, 1146, 1153, 1264, 1406, 1317, 1044, 1049])
def test_an_error_of_the_statement_itself_is_not_unavailable(number: int) -> None:
    assert type(as_write_error(driver_error(number), INFO)) is DbWriteError


@pytest.mark.parametrize("number", [1044, 1045, 1049, 2003, 2005, 9999])
def test_any_driver_error_while_connecting_is_unavailable(number: int) -> None:
    engine = create_engine("sqlite://")
    for error in (driver_error(number), pymysql.err.OperationalError(number, CANARY)):
        assert type(as_write_error(error, INFO, connecting=engine)) is DatabaseUnavailableError
    assert type(as_write_error(RuntimeError("a listener of the pool"), INFO, connecting=engine)) is DbWriteError


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (sqlite3.SQLITE_CANTOPEN, DbErrorKind.UNREACHABLE),
        (sqlite3.SQLITE_IOERR_WRITE, DbErrorKind.UNREACHABLE),
        (sqlite3.SQLITE_READONLY_DBMOVED, DbErrorKind.READ_ONLY),
        (sqlite3.SQLITE_FULL, DbErrorKind.READ_ONLY),
        (sqlite3.SQLITE_CORRUPT, DbErrorKind.OTHER),
        (None, DbErrorKind.OTHER),
    ],
)
def test_a_sqlite_file_that_cannot_be_used_is_unavailable(code: int | None, fault: DbErrorKind) -> None:
    error = sqlite3.OperationalError(CANARY)
    if code is not None:
        error.sqlite_errorcode = code

    assert fault_of(error) is fault
    assert isinstance(as_write_error(error, INFO), InfrastructureError) == (fault is not DbErrorKind.OTHER)


@pytest.mark.parametrize("committing", [True, False])
def test_an_exhausted_pool_is_unavailable_and_never_unknown(committing: bool) -> None:  # noqa: FBT001
    error = as_write_error(PoolTimeoutError("QueuePool limit"), INFO, committing=committing)

    assert type(error) is DatabaseUnavailableError
    assert "pool_size" in str(error)


def test_a_duplicate_claims_nothing_about_the_row_asked_for() -> None:
    said = str(as_write_error(driver_error(1062), OperationInfo("a statement of the session")))

    assert "unique key" in said
    assert "requested row" not in said


@pytest.mark.parametrize(
    "error",
    [
        pymysql.err.IntegrityError(1062, "raw"),
        PoolTimeoutError("QueuePool limit"),
        StatementError("a value is missing", "INSERT …", {}, KeyError("p0")),
        sqlite3.OperationalError("disk full"),
        DbWriteError("ours"),
    ],
)
def test_a_server_reply_or_an_unsent_statement_is_never_unknown(error: Exception) -> None:
    assert not outcome_unknown(error)


@pytest.mark.parametrize("number", [1062, 1205, 1213, 2013, 1064, 2003, 1317])
@pytest.mark.parametrize("committing", [True, False])
def test_no_message_carries_a_value(number: int, committing: bool) -> None:  # noqa: FBT001 - the same
    error = as_write_error(driver_error(number), INFO, committing=committing)

    assert CANARY not in f"{error} {error!r} {error.args} {vars(error)}"
    assert str(number) in str(error)
