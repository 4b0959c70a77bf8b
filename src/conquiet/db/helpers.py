"""Writes inside a session that are safe to repeat, and the retry loop for them."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from sqlalchemy.engine import Engine

from conquiet.core.backoff import Backoff
from conquiet.core.functions import reject_awaitable
from conquiet.core.validation import require_identifier, require_positive, require_table
from conquiet.db import sql
from conquiet.db.dialects import is_mysql, is_postgres
from conquiet.db.errors import OperationInfo, is_duplicate, other_key_error
from conquiet.db.insert import report_duplicate
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, ConflictError, DbWriteError, LockTimeoutError

T = TypeVar("T")

_BACKOFF: Final = Backoff(base_s=0.01, factor=2.0, cap_s=1.0, jitter=1.0)


def occ_update(
    session: DbSession,
    table: str,
    id_value: Any,
    values: Mapping[str, Any],
    *,
    expected_version: int,
    id_column: str = "id",
    version_column: str = "version",
) -> int:
    """Update a row only if it still has the version that was read; return its new version.

    No lock is held between reading and writing. If another transaction was first, or the row is gone,
    ``ConflictError`` is raised and the session can only be rolled back: read again in a new one.
    """
    require_table("table", table)
    require_identifier("id_column", id_column)
    require_identifier("version_column", version_column)
    columns = tuple(require_identifier("a column of values", column) for column in values)
    if sql.find_column(version_column, columns) is not None:
        raise ConfigurationError("values must not set the version column: occ_update raises it by one")
    mark = sql.DOUBLE_QUOTE if is_postgres(session.engine) else sql.BACKTICK
    statement = sql.update_version(table, columns, id_column, version_column, mark)
    with session.write_counts.measure(table, "update"):
        bound = sql.values(values, columns) | {"w0": id_value, "w1": expected_version}
        if session.send(statement, bound, OperationInfo("update", table)) != 1:
            conflict = ConflictError(
                f"the row of {table} was changed or removed since it was read; read it again in a new session",
                table=table,
                operation="update",
            )
            session.mark_failed(conflict)
            raise conflict
    return expected_version + 1


def insert_idempotent(
    session: DbSession, table: str, id_value: Any, values: Mapping[str, Any], *, id_column: str = "id"
) -> bool:
    """Insert a row unless one with this id exists; True if it was inserted.

    The id column is written too. A duplicate of *another* unique key is a ``DbWriteError``: the requested
    row does not exist (on PostgreSQL it ends the transaction). The second of two concurrent calls waits for the end of
    the first one's transaction.
    """
    require_table("table", table)
    require_identifier("id_column", id_column)
    row = {**values, id_column: id_value}
    columns = tuple(require_identifier("a column of values", column) for column in row)
    info = OperationInfo("insert", table)
    on_postgres = is_postgres(session.engine)
    # On PostgreSQL the error of a duplicate would end the transaction.
    statement = sql.insert_unless_exists(table, columns, id_column) if on_postgres else sql.insert(table, columns)
    with session.write_counts.measure(table, "insert"):
        try:
            inserted = session.send(statement, sql.values(row, columns), info)
        except DbWriteError as error:
            if not is_duplicate(error):
                raise
            # A locking read: the snapshot of this transaction may be older than the row.
            suffix = sql.SHARED if is_mysql(session.engine) else sql.PLAIN
            find = sql.select_id(table, id_column, suffix)
            if on_postgres or session.execute_scalar(find, {"w0": id_value}) is None:
                raise other_key_error(error, info) from error.__cause__
            inserted = 0
    if not inserted:
        report_duplicate(table)
    return bool(inserted)


def retry_on_conflict(
    engine: Engine,
    work: Callable[[DbSession], T],
    *,
    attempts: int = 5,
    backoff: Backoff = _BACKOFF,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Run ``work(session)`` in a new session, and again in another one after a conflict.

    Conflicts are a stale version (``occ_update``), a deadlock, a lock wait that timed out, and MariaDB's
    "record has changed". Every other error is raised immediately, also ``CommitUnknownError``: running the
    work again could do it twice. The conflict of the last attempt is raised too.

    Args:
        engine: As for ``DbSession``.
        work: Called with a new session for each attempt; its result is returned.
        attempts: Most attempts.
        backoff: How long to wait between two attempts.
        sleep: Waits the given number of seconds.
    """
    require_positive("attempts", attempts)
    for attempt in range(1, attempts + 1):
        try:
            with DbSession(engine) as session:
                result = work(session)
                reject_awaitable("work", result)
                return result
        except (ConflictError, LockTimeoutError):
            if attempt == attempts:
                raise
            sleep(backoff.delay_s(attempt))
    raise AssertionError("unreachable: the loop returns or raises")
