"""Error numbers of MySQL, MariaDB and SQLite, named; and which of our errors each becomes.

The one place where driver errors are read. Numbers only: texts are translated by the server
(``lc_messages``), differ between the two families, and quote values.

    driver error ──number_of──▶ errno ──fault_of──▶ Fault ──as_write_error──▶ DbWriteError
                                                      ▲
                            was the COMMIT under way? ┘  then a missing reply is "unknown"
"""

import sqlite3
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from conquiet.errors import CommitUnknownError, ConflictError, ConquietError, DbWriteError

DUPLICATE_KEY: Final = 1062

# 1022 and 1586 are older and partition-wise spellings of 1062. They are left out on purpose: only
# 1062 has been seen to mean "this key exists", and an unknown number is an error, never suppressed.
_DUPLICATE: Final = frozenset({DUPLICATE_KEY})
# 1205 lock wait timeout, 3572 NOWAIT on MySQL (MariaDB says 1205 there too).
_LOCK_TIMEOUT: Final = frozenset({1205, 3572})
# 1213 deadlock, 1020 record changed since last read (MariaDB 11.6 and newer), 3058 deadlock of MySQL's advisory locks,
# 3101 rolled back by group replication at commit, 1206 no room for more locks: InnoDB rolls back the transaction.
_CONFLICT: Final = frozenset({1213, 1020, 3058, 3101, 1206})
# 1317 KILL QUERY, 1969 MariaDB's max_statement_time, 3024 MySQL's max_execution_time.
_INTERRUPTED: Final = frozenset({1317, 1969, 3024})
# 0 is what both drivers say when asked to use a closed connection. 1053 server shutting down, 1927 MariaDB's KILL
# CONNECTION, 1158 to 1161 broken packets, 2006 … 2055 the client's view of a dead socket, 3169 and 4031 MySQL
# saying goodbye (killed, idle for too long).
_GONE: Final = frozenset({0, 1053, 1158, 1159, 1160, 1161, 1927, 2006, 2013, 2014, 2027, 2055, 3169, 4031})
# What connecting may end with: nobody answered, or we were not let in. 2026 is also what a TLS connection says that
# broke in the middle of a statement, so under a commit it is no proof that nothing was sent.
_UNREACHABLE: Final = frozenset({1040, 1044, 1045, 1049, 1129, 1130, 1203, 2002, 2003, 2005, 2012, 2026, 2061})
# Numbers of the client libraries; all others above 1000 are the server's.
_CLIENT: Final = range(2000, 3000)
_FIRST: Final = 1000
_NEVER_SENT: Final = "conquiet_never_sent"


class Fault(Enum):
    """What went wrong, as far as it changes what to do next."""

    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    LOCK_TIMEOUT = "lock_timeout"
    INTERRUPTED = "interrupted"
    GONE = "gone"
    UNREACHABLE = "unreachable"
    OTHER = "other"


_SAID: Final = {
    Fault.DUPLICATE: "a unique key exists already, and not that of the row asked for",
    Fault.CONFLICT: "another transaction was in the way; try again in a new one",
    Fault.LOCK_TIMEOUT: "another transaction held a lock for too long; try again in a new one",
    Fault.INTERRUPTED: "the server interrupted the statement",
    Fault.GONE: "the connection was lost",
    Fault.UNREACHABLE: "the server could not be reached or refused the connection",
    Fault.OTHER: "the database refused it; the driver's error is the cause of this one",
}


@dataclass(frozen=True, slots=True)
class About:
    """What a message may say: names out of the code, never a value."""

    operation: str
    table: str | None = None

    def __str__(self) -> str:
        return self.operation if self.table is None else f"{self.operation} on {self.table}"


def number_of(error: BaseException) -> int | None:
    """Return the server's or client library's error number, whichever driver raised it."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, sqlite3.Error):
        return getattr(original, "sqlite_errorcode", None)
    number = original.args[0] if original is not None and original.args else None
    # bool is an int to Python, and some errors carry an exception as their first argument.
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def mark_never_sent(error: Exception) -> None:
    """Note on an error that it arose before anything went to the server."""
    setattr(error, _NEVER_SENT, True)


def reply_missing(error: BaseException) -> bool:
    """Whether nobody can say what the server did, nor what it is still about to answer.

    True for a lost connection, for whatever the client library has to say (a broken TLS layer, packets out of order),
    and for an exception that is not the driver's: a time limit by signal may strike while a reply is on its way.
    """
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, sqlite3.Error) or hasattr(error, _NEVER_SENT):
        return False
    if not isinstance(error, DBAPIError):
        if isinstance(error, SQLAlchemyError | ConquietError):
            return False  # raised outside the driver: a pool that is empty, a parameter that does not fit
        if not any(kind.__name__ == "MySQLError" for kind in type(error).__mro__):  # the root of both drivers' errors
            return True
    number = number_of(error)
    return number is None or number < _FIRST or number in _CLIENT or fault_of(error) is Fault.GONE


def fault_of(error: BaseException) -> Fault:
    """Name the fault."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, sqlite3.Error):
        return _sqlite_fault(number_of(error))
    if isinstance(error, PoolTimeoutError):
        return Fault.UNREACHABLE
    number = number_of(error)
    for fault, numbers in (
        (Fault.DUPLICATE, _DUPLICATE),
        (Fault.LOCK_TIMEOUT, _LOCK_TIMEOUT),
        (Fault.CONFLICT, _CONFLICT),
        (Fault.INTERRUPTED, _INTERRUPTED),
        (Fault.UNREACHABLE, _UNREACHABLE),
    ):
        if number in numbers:
            return fault
    # SQLAlchemy's own verdict counts too: it knows drivers and numbers that are not listed here.
    if (isinstance(error, DBAPIError) and error.connection_invalidated) or number in _GONE:
        return Fault.GONE
    return Fault.OTHER


def _sqlite_fault(code: int | None) -> Fault:
    if code in {
        sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
        sqlite3.SQLITE_CONSTRAINT_UNIQUE,
        sqlite3.SQLITE_CONSTRAINT_ROWID,
    }:
        return Fault.DUPLICATE
    if code is not None and code & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return Fault.CONFLICT
    return Fault.OTHER


def as_write_error(error: BaseException, about: About, *, committing: bool = False) -> DbWriteError:
    """Build our error for a driver's; the caller raises it ``from`` that one.

    Args:
        error: What the driver or SQLAlchemy raised.
        about: What was being done.
        committing: The server may have committed by the time the error arose: the COMMIT was under
            way, or a statement that is a transaction by itself.
    """
    number, fault = number_of(error), fault_of(error)
    facts: dict[str, Any] = {"table": about.table, "operation": about.operation, "errno": number}
    shown = f" (error {number})" if number is not None else ""
    # Any error the server answered with means that it did not commit. We would rather call a write unknown
    # that was never sent than call one failed that is there.
    if committing and reply_missing(error):
        broken = "the connection was lost" if fault is Fault.GONE else "it was broken off"
        return CommitUnknownError(
            f"{about}: {broken} before the reply to the commit{shown}, so it may be there or not; "
            "look for the row, or let an inbox decide, before doing it again",
            **facts,
        )
    kind = ConflictError if fault in {Fault.CONFLICT, Fault.LOCK_TIMEOUT} else DbWriteError
    return kind(f"{about} failed{shown}: {_SAID[fault]}", **facts)
