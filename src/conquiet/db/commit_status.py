"""Resolve a COMMIT after its reply was lost. PostgreSQL keeps the result; MySQL and SQLite do not.

    before COMMIT:   current_transaction()   its id, and the timeline of the server; a statement, unless it was recorded
    reply lost:      resolve_commit()        a new connection queries pg_xact_status(id) until the status is final

    committed        the effect is there, as if the reply had arrived
    aborted          nothing was written
    in progress      the server has not noticed the lost connection yet: query again, later terminate the backend
    no status        the server is unavailable for too long, another server replies (a standby was promoted), or it
                     does not know the id any more: unknown

Another timeline is never trusted. After a fail-over to a standby that lags, the new server may assign the id to another
transaction, and "committed" would refer to that transaction.

See docs/decisions/0005.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from conquiet.core.log import FactLogger
from conquiet.db.driver_errors import FAILED_TRANSACTION, sqlstate_of
from conquiet.db.engine_pool import separate_engine
from conquiet.db.statement_abort import abortable_of
from conquiet.errors import CommitUnknownError, DatabaseUnavailableError, DbWriteError

logger = FactLogger(__name__)

# One statement, and no file is read for it. A standby has no insert position, and gives out no ids.
_TIMELINE: Final = (
    "CASE WHEN pg_is_in_recovery() THEN NULL ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END AS timeline"
)
_CURRENT: Final = text(f"SELECT CAST(pg_current_xact_id_if_assigned() AS text) AS xid, {_TIMELINE}")
RETURNING: Final = f"CAST(pg_current_xact_id() AS text) AS xid, {_TIMELINE}"
"""Columns that an INSERT returns for ``record_transaction``, so that no other statement is needed."""
_STATUS: Final = text(f"SELECT pg_xact_status(CAST(CAST(:xid AS text) AS xid8)) AS status, {_TIMELINE}")
# Only the backend that still runs this transaction, and with synchronous standbys only if it waits for its client:
# COMMIT may be about to wait for a standby, and interrupting that wait commits on this server alone. pg_stat_activity
# has the lower 32 bits of the id.
_END: Final = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE CAST(backend_xid AS text) = CAST(CAST(CAST(:xid AS text) AS numeric) % 4294967296 AS text) "
    "AND wait_event IS DISTINCT FROM 'SyncRep' "
    "AND (state <> 'active' OR current_setting('synchronous_standby_names') = '')"
)

TIMEOUT_S: Final = 10.0
_END_AFTER_S: Final = 1.0
PAUSE_S: Final = 0.05
_IN_ERROR: Final = 3  # psycopg.pq.TransactionStatus.INERROR, psycopg2.extensions.TRANSACTION_STATUS_INERROR
_IDLE: Final = 0


class CommitStatus(Enum):
    """The status of a transaction that has ended, as PostgreSQL names it; or unknown."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TransactionId:
    """A transaction of PostgreSQL.

    Attributes:
        xid: Its id, 64 bits in decimal.
        timeline: The timeline of the server that gave it.
    """

    xid: str
    timeline: str


_recorded: "WeakKeyDictionary[object, TransactionId]" = WeakKeyDictionary()
"""Ids that a statement of the transaction has returned."""


def record_transaction(connection: Connection, row: Mapping[str, Any]) -> None:
    """Record the id of the connection's transaction, from a row with ``RETURNING``."""
    transaction = connection.get_transaction()
    if transaction is not None and row["timeline"] is not None:
        _recorded[transaction] = TransactionId(row["xid"], row["timeline"])


def current_transaction(connection: Connection, operation: str) -> TransactionId | None:
    """Return the id of the connection's transaction; None if it has written nothing. One round trip at most.

    Args:
        connection: In the transaction.
        operation: Names the transaction in the error.

    Raises:
        DbWriteError: A statement failed. COMMIT would roll back and report no error: the caller would believe that its
            work is there.
    """
    state = _driver_status(connection)
    if state == _IN_ERROR:
        raise _failed_transaction(operation)
    if state == _IDLE:
        return None  # no statement was sent
    # A driver that does not know the state needs a query: the transaction may have failed since.
    if state is not None and (recorded := _recorded.get(connection.get_transaction())) is not None:
        return recorded
    try:
        row = connection.execute(_CURRENT).one()
    except DBAPIError as error:
        if sqlstate_of(error) == FAILED_TRANSACTION:
            raise _failed_transaction(operation) from error
        raise
    if row.xid is None or row.timeline is None:
        return None
    return TransactionId(row.xid, row.timeline)


def status_of(connection: Connection, transaction: TransactionId, *, end_backend: bool = False) -> CommitStatus | None:
    """Query the status of a transaction, on another connection; None while it is in progress.

    Args:
        connection: A connection to the same server.
        transaction: Which transaction.
        end_backend: Terminate the backend that still runs it. Its client has lost the connection.
    """
    try:
        row = connection.execute(_STATUS, {"xid": transaction.xid}).one()
    except DBAPIError as error:
        if error.connection_invalidated or sqlstate_of(error) is None:
            raise
        return CommitStatus.UNKNOWN  # an id of the future: another server, with another history
    if row.timeline != transaction.timeline or row.status is None:
        return CommitStatus.UNKNOWN
    if row.status != "in progress":
        return CommitStatus(row.status)
    if end_backend:
        connection.execute(_END, {"xid": transaction.xid})
    return None


def resolve_commit(engine: Engine, transaction: TransactionId, *, timeout_s: float = TIMEOUT_S) -> CommitStatus:
    """Query the server until the status is final or the timeout expires. Never raises an error of the database.

    Uses connections outside the engine's pool, because pooled ones may be dead too, or all in use.

    Args:
        engine: The engine of the lost connection.
        transaction: Which transaction.
        timeout_s: Longest wait for the server. Connecting has the engine's own limit.
    """
    separate = separate_engine(engine)
    if (abortable := abortable_of(engine)) is not None:
        abortable.include(separate)
    try:
        for end_backend in attempts(timeout_s):
            if abortable is not None and abortable.is_aborted:
                break
            # An error: the server is unavailable.
            with suppress(SQLAlchemyError), separate.connect() as connection:
                found = status_of(connection, transaction, end_backend=end_backend)
                connection.rollback()
                if found is not None:
                    return found
            time.sleep(PAUSE_S)
    finally:
        separate.dispose()
    return CommitStatus.UNKNOWN


def attempts(timeout_s: float) -> Iterator[bool]:
    """Yield for each query of the status whether to terminate the backend; end after the timeout."""
    began, waited_s = time.monotonic(), 0.0
    while waited_s <= timeout_s:
        waited_s = time.monotonic() - began
        yield waited_s > _END_AFTER_S


def after_lost_reply(status: CommitStatus, unknown: CommitUnknownError) -> DbWriteError | None:
    """Return the error to raise for a COMMIT without a reply; None if it is committed.

    Args:
        status: The status on the server.
        unknown: The error to raise if the status is unknown.
    """
    logger.warning("reply to COMMIT lost, queried the server", status=status.value)
    match status:
        case CommitStatus.COMMITTED:
            return None
        case CommitStatus.ABORTED:
            return DatabaseUnavailableError(
                f"{unknown.operation}: the connection was lost before COMMIT took effect; the server has rolled back",
                operation=unknown.operation,
                sqlstate=unknown.sqlstate,
            )
        case CommitStatus.UNKNOWN:
            return unknown


def _failed_transaction(operation: str) -> DbWriteError:
    return DbWriteError(
        f"{operation} failed: one of its statements failed, and PostgreSQL rolls such a transaction back at COMMIT; "
        "roll back to a savepoint after an error that you handle",
        operation=operation,
        sqlstate=FAILED_TRANSACTION,
    )


def _driver_status(connection: Connection) -> int | None:
    """Return the transaction's state as libpq knows it; None for a driver that is not built on it. No I/O."""
    raw: Any = connection.connection.dbapi_connection
    status = getattr(getattr(raw, "info", None), "transaction_status", None)
    return status if isinstance(status, int) else None
