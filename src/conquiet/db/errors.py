"""Translate driver errors into conquiet's, by their numbers (PostgreSQL: by their SQLSTATE).

This is the only place where driver errors are read. Decisions are made from numbers and codes only: texts
are translated by the server (``lc_messages``), differ between MySQL and MariaDB, and quote values. The name of a
missing table or column is the only thing taken out of a text (``driver_errors``).

    driver error ──number_of──▶ errno ──fault_of──▶ DbErrorKind ──as_write_error──▶ DbWriteError
                                                      ▲
                            was COMMIT in flight? ────┘  then a missing reply is "unknown"
"""

import sqlite3
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from conquiet.core.log import add_describer
from conquiet.db.driver_errors import (
    FAILED_TRANSACTION,
    describe_missing_object,
    driver_code_of,
    number_of,
    original_of,
    sqlstate_of,
)
from conquiet.db.engine_pool import database_address, pool_timeout_hint
from conquiet.errors import (
    CommitUnknownError,
    ConflictError,
    ConquietError,
    DatabaseUnavailableError,
    DbWriteError,
)

DUPLICATE_KEY: Final = 1062

# Numbers of the client libraries; all others above 1000 come from the server.
_CLIENT: Final = range(2000, 3000)
_FIRST: Final = 1000
_NOT_SENT: Final = "conquiet_not_sent"


class DbErrorKind(Enum):
    """Kinds of failure that need different reactions."""

    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    LOCK_TIMEOUT = "lock_timeout"
    INTERRUPTED = "interrupted"
    GONE = "gone"
    UNREACHABLE = "unreachable"
    READ_ONLY = "read_only"
    POOL_EXHAUSTED = "pool_exhausted"
    OTHER = "other"


_BY_NUMBER: Final[dict[int | None, DbErrorKind]] = {
    # 1022 and 1586 are older and partition-wise spellings of 1062. They are left out on purpose: only
    # 1062 has been seen to mean "this key exists", and an unknown number is an error, never suppressed.
    DUPLICATE_KEY: DbErrorKind.DUPLICATE,
    # 1205 lock wait timeout, 3572 NOWAIT on MySQL (MariaDB returns 1205 there too).
    **dict.fromkeys((1205, 3572), DbErrorKind.LOCK_TIMEOUT),
    # 1213 deadlock, 1020 record changed since last read (MariaDB 11.6 and newer), 3058 deadlock of MySQL's advisory
    # locks, 3101 rolled back by group replication at commit, 1206 the lock table is full: InnoDB rolls back the
    # transaction.
    **dict.fromkeys((1213, 1020, 3058, 3101, 1206), DbErrorKind.CONFLICT),
    # 1317 KILL QUERY, 1969 MariaDB's max_statement_time, 3024 MySQL's max_execution_time.
    **dict.fromkeys((1317, 1969, 3024), DbErrorKind.INTERRUPTED),
    # 0 is the number of both drivers for the use of a closed connection. 1053 server shutting down, 1927 MariaDB's KILL
    # CONNECTION, 1158 to 1161 broken packets, 2006 … 2055 a dead socket, 3169 and 4031 the session was killed or idle
    # for too long (MySQL).
    **dict.fromkeys(
        (0, 1053, 1158, 1159, 1160, 1161, 1927, 2006, 2013, 2014, 2027, 2055, 3169, 4031), DbErrorKind.GONE
    ),
    # No connection could be opened: no reply, or too many connections. 1047 is a Galera node that is not ready, 1226 a
    # limit of the user's account, 3032 a server in offline mode, 1135 no thread for a connection. 2026 is also the
    # number of a TLS connection that broke during a statement, so during a commit it does not prove that nothing was
    # sent.
    **dict.fromkeys(
        (1040, 1045, 1047, 1129, 1130, 1135, 1152, 1184, 1203, 1226, 2002, 2003, 2005, 2012, 2026, 2061, 3032),
        DbErrorKind.UNREACHABLE,
    ),
    # The server is up and accepts no writes: 1290 read_only or super_read_only, 1792 read-only transaction
    # (transaction_read_only), 1836 read-only mode, 1874 InnoDB read-only, 1021 disk full.
    **dict.fromkeys((1021, 1290, 1792, 1836, 1874), DbErrorKind.READ_ONLY),
}
_BY_SQLITE_CODE: Final = {
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: DbErrorKind.DUPLICATE,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: DbErrorKind.DUPLICATE,
    sqlite3.SQLITE_CONSTRAINT_ROWID: DbErrorKind.DUPLICATE,
    sqlite3.SQLITE_BUSY: DbErrorKind.CONFLICT,
    sqlite3.SQLITE_LOCKED: DbErrorKind.CONFLICT,
    sqlite3.SQLITE_CANTOPEN: DbErrorKind.UNREACHABLE,
    sqlite3.SQLITE_IOERR: DbErrorKind.UNREACHABLE,
    sqlite3.SQLITE_READONLY: DbErrorKind.READ_ONLY,
    sqlite3.SQLITE_FULL: DbErrorKind.READ_ONLY,
}
_BY_SQLSTATE: Final = {
    "23505": DbErrorKind.DUPLICATE,
    "40001": DbErrorKind.CONFLICT,  # serialization failure
    "40P01": DbErrorKind.CONFLICT,  # deadlock
    "55P03": DbErrorKind.LOCK_TIMEOUT,  # NOWAIT, or lock_timeout
    "57014": DbErrorKind.INTERRUPTED,  # statement_timeout, or pg_cancel_backend()
    # The server ends the connection: 57P01 shutdown or pg_terminate_backend(), 57P02 another process crashed, 57P05
    # and 25P03 and 25P04 its limits for idle sessions, idle transactions and transactions. 40003 is its own "unknown".
    "57P01": DbErrorKind.GONE,
    "57P02": DbErrorKind.GONE,
    "57P05": DbErrorKind.GONE,
    "25P03": DbErrorKind.GONE,
    "25P04": DbErrorKind.GONE,
    "40003": DbErrorKind.GONE,
    # No connection: 57P03 starting or stopping, 53300 too many, 28000 and 28P01 refused, 57P04 no such database now.
    "57P03": DbErrorKind.UNREACHABLE,
    "57P04": DbErrorKind.UNREACHABLE,
    "53300": DbErrorKind.UNREACHABLE,
    "28000": DbErrorKind.UNREACHABLE,
    "28P01": DbErrorKind.UNREACHABLE,
    # Up, and accepts no writes: 25006 a standby or default_transaction_read_only, 53100 disk full.
    "25006": DbErrorKind.READ_ONLY,
    "53100": DbErrorKind.READ_ONLY,
}
_BY_SQLSTATE_CLASS: Final = {
    "08": DbErrorKind.GONE,  # connection exception
    "58": DbErrorKind.UNREACHABLE,  # an I/O error of the server: not the statement's fault
}

_DESCRIPTIONS: Final = {
    DbErrorKind.DUPLICATE: "a row with the same value of a unique key exists already",
    DbErrorKind.CONFLICT: "it conflicted with another transaction",
    DbErrorKind.LOCK_TIMEOUT: "another transaction held a lock for too long",
    DbErrorKind.INTERRUPTED: "the server interrupted the statement",
    DbErrorKind.GONE: "the connection was lost",
    DbErrorKind.UNREACHABLE: "the server could not be reached or refused the connection",
    DbErrorKind.READ_ONLY: "the server accepts no writes now",
    DbErrorKind.POOL_EXHAUSTED: "no connection of the pool was free in time",
}
_REMEDIES: Final = {
    DbErrorKind.CONFLICT: "; try again in a new one",
    DbErrorKind.LOCK_TIMEOUT: "; try again in a new one",
    DbErrorKind.GONE: " before COMMIT was sent; the server rolls back",
    DbErrorKind.UNREACHABLE: "; nothing was written",
    DbErrorKind.READ_ONLY: " (read-only, or its disk is full); nothing was written",
    DbErrorKind.POOL_EXHAUSTED: ": more tasks than the pool has connections needed one concurrently; raise pool_size "
    "or max_overflow of the engine, or lower the concurrency",
    DbErrorKind.OTHER: "the database refused it; the driver's error is the cause of this one",
}
"""Appended to the descriptions where conquiet sent the statement. Elsewhere nothing is known of what was written."""

_REFUSED_LOGIN: Final = (
    "the server refused the user name or the password; put the right ones into the database URL; nothing was written"
)

_FAILED_BEFORE: Final = (
    "an earlier statement of this transaction failed, and PostgreSQL accepts only ROLLBACK after that"
)

UNAVAILABLE: Final = frozenset(
    {DbErrorKind.GONE, DbErrorKind.UNREACHABLE, DbErrorKind.READ_ONLY, DbErrorKind.POOL_EXHAUSTED}
)
"""Faults of the database or the pool: the same work may succeed later without a change."""

ENDS_TRANSACTION: Final = frozenset({DbErrorKind.CONFLICT, DbErrorKind.LOCK_TIMEOUT, DbErrorKind.GONE})
"""Faults after which a transaction can only be rolled back, on some server at least."""

_TRANSIENT: Final = ENDS_TRANSACTION | UNAVAILABLE

_KINDS: Final[dict[DbErrorKind, type[DbWriteError]]] = {
    DbErrorKind.CONFLICT: ConflictError,
    DbErrorKind.LOCK_TIMEOUT: ConflictError,
    **dict.fromkeys(UNAVAILABLE, DatabaseUnavailableError),
}


@dataclass(frozen=True, slots=True)
class OperationInfo:
    """The operation, for error messages: names from the code, never a value."""

    operation: str
    table: str | None = None

    def __str__(self) -> str:
        return self.operation if self.table is None else f"{self.operation} on {self.table}"


def mark_not_sent(error: Exception) -> None:
    """Mark an error as raised before anything was sent to the server."""
    setattr(error, _NOT_SENT, True)


def outcome_unknown(error: BaseException) -> bool:
    """Return True if the error shows neither what the server did nor whether a reply is still to come.

    That is a lost connection, an error of the client library (a broken TLS layer, packets out of order), and an
    exception that is not the driver's: a time limit by signal may be raised while a reply is on its way.
    """
    if isinstance(original_of(error), sqlite3.Error) or hasattr(error, _NOT_SENT):
        return False
    if not isinstance(error, DBAPIError):
        if isinstance(error, SQLAlchemyError | ConquietError):
            return False  # raised outside the driver: an empty pool, a parameter that does not fit
        if not _from_driver(error):
            return True
    if sqlstate_of(error) is not None:  # the server replied; if it ends the connection, COMMIT may have come before
        return fault_of(error) is DbErrorKind.GONE
    number = number_of(error)
    return number is None or number < _FIRST or number in _CLIENT or fault_of(error) is DbErrorKind.GONE


def _from_driver(error: BaseException) -> bool:
    # MySQLError is the root of the errors of both drivers.
    return isinstance(error, DBAPIError | sqlite3.Error) or any(
        kind.__name__ == "MySQLError" for kind in type(error).__mro__
    )


def fault_of(error: BaseException) -> DbErrorKind:
    """Return the kind of failure."""
    if isinstance(original_of(error), sqlite3.Error):
        code = number_of(error) or 0  # 0 is none of its errors
        return _BY_SQLITE_CODE.get(code) or _BY_SQLITE_CODE.get(code & 0xFF, DbErrorKind.OTHER)
    if isinstance(error, PoolTimeoutError):
        return DbErrorKind.POOL_EXHAUSTED
    if (state := sqlstate_of(error)) is not None:
        return _BY_SQLSTATE.get(state) or _BY_SQLSTATE_CLASS.get(state[:2], DbErrorKind.OTHER)
    kind = _BY_NUMBER.get(number_of(error), DbErrorKind.OTHER)
    # SQLAlchemy's own classification counts too: it knows drivers and numbers that are not listed here.
    if kind is DbErrorKind.OTHER and isinstance(error, DBAPIError) and error.connection_invalidated:
        return DbErrorKind.GONE
    return kind


def as_write_error(
    error: BaseException,
    info: OperationInfo,
    *,
    committing: bool = False,
    connecting: Engine | None = None,
) -> DbWriteError:
    """Build conquiet's error for a driver error; the caller raises it ``from`` the driver error.

    Args:
        error: The exception of the driver or of SQLAlchemy.
        info: The operation.
        committing: The server may have committed before the error: COMMIT was in flight, or a statement that is its
            own transaction.
        connecting: The engine, if it could not open a connection. Then every driver error means that the database is
            unavailable, also an unknown schema or a wrong password: no other work would get further. The text names
            the address, and the size of a pool without a free connection.
    """
    code, state, fault = driver_code_of(error), sqlstate_of(error), fault_of(error)
    number = number_of(error)
    facts: dict[str, Any] = {"table": info.table, "operation": info.operation, "errno": number, "sqlstate": state}
    shown = f" (error {code})" if code is not None else ""
    # An error that the server replied with means that it did not commit. Preferred loss: a write that was never sent is
    # reported as unknown, rather than a committed one as failed.
    if committing and outcome_unknown(error):
        broken = "the connection was lost" if fault is DbErrorKind.GONE else "it was interrupted"
        return CommitUnknownError(
            f"{info}: {broken} before the reply to the commit{shown}, so it may be committed or not; "
            "check for the row, or let an inbox decide, before doing it again",
            **facts,
        )
    if connecting is not None and fault is not DbErrorKind.POOL_EXHAUSTED and _from_driver(error):
        fault = DbErrorKind.UNREACHABLE
    description = (
        (None if connecting is None else pool_timeout_hint(error, connecting.pool))
        or describe_missing_object(error, own_statement=info.table is not None)
        or (_FAILED_BEFORE if state == FAILED_TRANSACTION else None)
        or (_REFUSED_LOGIN if connecting is not None and is_refused_login(error) else None)
        or _DESCRIPTIONS.get(fault, "") + _REMEDIES.get(fault, "")
    )
    if connecting is not None and fault in UNAVAILABLE and (server := database_address(connecting)):
        description = f"{description} (server {server})"
    return _KINDS.get(fault, DbWriteError)(f"{info} failed{shown}: {description}", **facts)


def is_transient(error: DBAPIError) -> bool:
    """Return whether the same transaction may succeed later: a conflict, or the database is unavailable."""
    return fault_of(error) in _TRANSIENT


def is_refused_login(error: BaseException) -> bool:
    """Return whether the server refused the user name or the password."""
    # libpq reports a refused password without a code; the text is searched and not shown.
    return driver_code_of(error) in {1045, 1698, "28P01", "28000"} or "password authentication failed" in str(error)


def describe_error(error: BaseException) -> str | None:
    """Describe an error of SQLAlchemy for a log: number and kind, the name of a missing table, no value."""
    if not isinstance(error, DBAPIError | PoolTimeoutError):
        return None
    described = describe_missing_object(error, own_statement=False) or _DESCRIPTIONS.get(fault_of(error))
    code = driver_code_of(error)
    return ": ".join(filter(None, (f"error {code}" if code else "", described))) or None


add_describer(describe_error)


def is_duplicate(error: DbWriteError) -> bool:
    """Return whether a unique key exists already."""
    return error.__cause__ is not None and fault_of(error.__cause__) is DbErrorKind.DUPLICATE


def code_of(error: DbWriteError) -> int | str | None:
    """Return the number of an error, or its SQLSTATE on PostgreSQL."""
    return error.errno if error.sqlstate is None else error.sqlstate


def other_key_error(error: DbWriteError, info: OperationInfo) -> DbWriteError:
    """Return the error of a duplicate if no row has the requested id: another unique key is the duplicate."""
    return DbWriteError(
        f"{info} failed (error {code_of(error)}): a unique key exists already, but not in the requested row: no row "
        "has its id",
        table=info.table,
        operation=info.operation,
        errno=error.errno,
        sqlstate=error.sqlstate,
    )
