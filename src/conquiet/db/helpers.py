"""Writes inside a session that are safe to repeat, and the loop that repeats them."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from sqlalchemy.engine import Engine

from conquiet.db import sql
from conquiet.db.columns import spelling_of
from conquiet.db.dialects import is_mysql
from conquiet.db.faults import Fault, fault_of
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, ConflictError, DbWriteError, LockTimeoutError
from conquiet.kernel.backoff import Backoff
from conquiet.kernel.validation import require_identifier, require_positive, require_table

T = TypeVar("T")

_QUICK: Final = Backoff(base_s=0.01, factor=2.0, cap_s=1.0, jitter=1.0)


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

    No lock is held between reading and writing. If somebody else was first, or the row is gone,
    that is a ``ConflictError`` and the session is over: read again in a new one.
    """
    require_table("table", table)
    require_identifier("id_column", id_column)
    require_identifier("version_column", version_column)
    columns = tuple(require_identifier("a column of values", column) for column in values)
    if spelling_of(version_column, columns) is not None:
        raise ConfigurationError("values must not set the version column: occ_update raises it by one")
    statement = sql.update_version(table, columns, id_column, version_column)
    matched = session.execute(statement, sql.values(values, columns) | {"w0": id_value, "w1": expected_version})
    if matched != 1:
        conflict = ConflictError(
            f"the row of {table} was changed or removed since it was read; read it again in a new session",
            table=table,
            operation="update",
        )
        session.doom(conflict)
        raise conflict
    return expected_version + 1


def insert_idempotent(
    session: DbSession, table: str, id_value: Any, values: Mapping[str, Any], *, id_column: str = "id"
) -> bool:
    """Insert a row unless one with this id exists; True if it was inserted.

    The id column is written too. A duplicate of *another* unique key is a ``DbWriteError``: the row asked
    for is not there. The second of two concurrent calls waits for the first one's transaction to end.
    """
    require_table("table", table)
    require_identifier("id_column", id_column)
    row = {**values, id_column: id_value}
    columns = tuple(require_identifier("a column of values", column) for column in row)
    try:
        session.execute(sql.insert(table, columns), sql.values(row, columns))
    except DbWriteError as error:
        cause = error.__cause__
        if cause is None or fault_of(cause) is not Fault.DUPLICATE:
            raise
        # A locking read: the snapshot of this transaction may be older than the row.
        suffix = sql.SHARED if is_mysql(session.engine) else sql.PLAIN
        if session.execute_scalar(sql.select_id(table, id_column, suffix), {"w0": id_value}) is None:
            raise
        return False
    return True


def retry_on_conflict(
    engine: Engine,
    work: Callable[[DbSession], T],
    *,
    attempts: int = 5,
    backoff: Backoff = _QUICK,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Run ``work(session)`` in a session of its own, and again in a new one if it met a conflict.

    Conflicts are a stale version (``occ_update``), a deadlock, a lock wait that ran out, and MariaDB's
    "record has changed". Everything else is raised at once, ``CommitUnknownError`` above all: doing
    that again could do it twice. So is the last attempt's conflict.
    """
    require_positive("attempts", attempts)
    for attempt in range(1, attempts + 1):
        try:
            with DbSession(engine) as session:
                return work(session)
        except (ConflictError, LockTimeoutError):
            if attempt == attempts:
                raise
            sleep(backoff.delay_s(attempt))
    raise AssertionError("unreachable: the loop returns or raises")
