"""Purge inbox rows and parked outbox rows by age, in the background, on one host at a time.

    every interval_s:  try the lock ──┬─ another host purges: wait for the next time
                                      └─ ours: delete a batch, COMMIT, pause, again until none is old

Each batch is one transaction that deletes the oldest rows and locks nothing else, so it blocks no insert.
The pause keeps its share of the server's work small, because inserts wait for the same disk. The share follows the need
(``PurgePace``). The lock only saves work: two hosts that purge at the same time delete different rows, or wait briefly
for each other.
"""

import hashlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from sqlalchemy import TextClause, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from conquiet.core.closing import ClosedAfterUse
from conquiet.core.functions import require_plain_function
from conquiet.core.lifecycle import BlockingLifecycle, Health
from conquiet.core.log import FactLogger
from conquiet.core.validation import require_instance, require_positive, require_seconds
from conquiet.db.dialects import require_supported
from conquiet.db.engine_pool import database_address, pool_capacity
from conquiet.db.errors import OperationInfo, as_write_error
from conquiet.db.locking.naming import lock_name
from conquiet.db.session import DbSession
from conquiet.db.statement_abort import AbortableEngine
from conquiet.errors import ConfigurationError, ConquietError, InfrastructureError
from conquiet.metrics.outages import OutageWatch
from conquiet.metrics.registry import INBOX_PURGED_TOTAL, OUTBOX_PURGED_TOTAL, PURGE_ERRORS_TOTAL
from conquiet.metrics.safety import count
from conquiet.transactional.sql_dialect import dialect_named

if TYPE_CHECKING:
    from conquiet.transactional.inbox import Inbox
    from conquiet.transactional.outbox import Outbox

logger = FactLogger(__name__)

DAY_S: Final = 86_400.0

INBOX_RETENTION_S: Final = 30 * DAY_S
"""Default retention of inbox rows."""

_LOCKING: Final = OperationInfo("taking or keeping the lock of a purge")
_LOCK_IDLE_S: Final = 120
PURGE_BATCH: Final = 500
"""Rows deleted by one transaction, unless set."""
LONGEST_PAUSE_S: Final = 60.0
"""A pause is never longer: the server closes the connection of the purger's lock after two idle minutes."""
_IDLE_SESSIONS_SINCE: Final = (14,)
_BUSY_FACTOR: Final = 10
"""Intervals after which a busy worker purges too, and after which a pass that has not ended works faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseRetention:
    """Retention of rows in the tables.

    Attributes:
        inbox_s: Age from which an inbox row is deleted; None keeps all. It must be longer than everything that can
            deliver a message again: claims, retries, replays of dead letters. A message that is delivered again later
            has its effect a second time.
        parked_s: Age from which a *parked* outbox row is deleted; None keeps all. Such a row is a message that was
            never published, so this is off unless you set it.
        interval_s: Time between two passes of a host.
        batch: Rows deleted by one transaction.
        share: Part of the time in which a pass works; it pauses for the rest. The cost for inserts is in
            docs/housekeeping.md.
        max_share: A pass that has not ended after ten intervals doubles its share, up to this part of the time (or
            ``share``, if that is more). It returns to ``share`` step by step.
    """

    inbox_s: float | None = INBOX_RETENTION_S
    parked_s: float | None = None
    interval_s: float = 60.0
    batch: int = PURGE_BATCH
    share: float = 0.005
    max_share: float = 0.25

    def __post_init__(self) -> None:
        for name in ("inbox_s", "parked_s"):
            value = getattr(self, name)
            if value is not None:
                require_seconds(name, value)
        require_seconds("interval_s", self.interval_s)
        require_positive("batch", self.batch)
        for name in ("share", "max_share"):
            if require_seconds(name, value := getattr(self, name)) > 1:
                raise ConfigurationError(f"{name} must be a number above 0 and at most 1, got {value!r}")


class PurgePace:
    """The share of the time in which passes of one host work.

    It doubles while a pass does not end, because more rows become old than are deleted; every pass that ends halves it.
    So it stays near what the table needs: a table with 600 new rows a second needs about a hundredth, and a table that
    was not purged for months is emptied within hours.

    Args:
        least: The share to begin with.
        most: The share to end with; ``least`` if that is more.
        speed_up_after_s: Time after which a pass that has not ended speeds up.

    Attributes:
        share: The share now.
    """

    def __init__(self, least: float, most: float, *, speed_up_after_s: float) -> None:
        self._least = least
        self._most = max(least, most)
        self._speed_up_after_s = speed_up_after_s
        self._since = 0.0
        self.share = least

    def begin(self, now: float) -> None:
        """Record that a pass begins."""
        self._since = now

    def pause_s(self, now: float, took_s: float) -> float:
        """Return how long to wait after a full batch that took ``took_s``."""
        if now - self._since >= self._speed_up_after_s:
            self._since = now
            self.share = min(self.share * 2, self._most)
        return min(took_s * (1 / self.share - 1), LONGEST_PAUSE_S)

    def caught_up(self) -> None:
        """Record that a pass has deleted all old rows."""
        self.share = max(self.share / 2, self._least)


class Purger(ClosedAfterUse):
    """Deletes old rows until it is stopped. Satisfies ``core.lifecycle.Worker``.

    ``with Purger(engine, inbox=inbox):`` runs it in a background thread; ``run()`` blocks. Every host may run one.

    Args:
        engine: The database of the tables. A pass uses two connections of its pool, one of them for a lock.
        inbox: The inbox to purge; None purges none.
        outbox: The outbox to purge of parked rows; None purges none.
        retention: Ages and pace.
        is_idle: Called before each pass: False postpones the pass, or leaves it to another host, for at most ten
            intervals.

    Attributes:
        abandoned: Always 0: it runs no handlers.
    """

    abandoned = 0

    def __init__(
        self,
        engine: Engine,
        *,
        inbox: "Inbox | None" = None,
        outbox: "Outbox | None" = None,
        retention: DatabaseRetention | None = None,
        is_idle: Callable[[], bool] | None = None,
    ) -> None:
        self._statements = AbortableEngine(require_supported(engine))
        self._engine = self._statements.engine
        _require_tables(inbox, outbox)
        self._inbox = inbox
        self._outbox = outbox
        self._retention = DatabaseRetention() if retention is None else retention
        require_instance("retention", self._retention, DatabaseRetention)
        if is_idle is not None:
            require_plain_function("is_idle", is_idle)
        keep = self._retention
        self._pace = PurgePace(keep.share, keep.max_share, speed_up_after_s=keep.interval_s * _BUSY_FACTOR)
        self._is_idle = is_idle
        self._lifecycle = BlockingLifecycle("this Purger")
        self._failed_with = ""
        self._outage = OutageWatch("the database", "old rows are not purged")
        tables = [one.table for one in (inbox, outbox) if one is not None]
        self._lock = lock_name("conquiet_purge", str(engine.url.database or ""), *tables)

    @property
    def name(self) -> str:
        """The tables that it purges."""
        return "purger:" + ",".join(one.table for one in (self._inbox, self._outbox) if one is not None)

    def run(self) -> None:
        """Purge until ``stop()``. An unavailable database is logged once and retried."""
        self._lifecycle.start()
        self._run()

    def _run(self) -> None:
        interval_s = self._retention.interval_s
        last_pass = time.monotonic()
        try:
            # Jitter: hosts that start together should not purge together.
            while self._lifecycle.sleep(interval_s * (0.5 + random.random())):  # noqa: S311
                overdue = time.monotonic() - last_pass >= interval_s * _BUSY_FACTOR
                if self._is_idle is None or overdue or self._is_idle():
                    self._pass()
                    last_pass = time.monotonic()
        finally:
            self._outage.close()
            self._lifecycle.finish()

    def purge_now(self) -> int:
        """Run one pass unless another host holds the purge lock; return the number of deleted rows."""
        with self._exclusive() as keep_lock:
            return 0 if keep_lock is None else self._purge(keep_lock)

    def stop(self) -> None:
        """Request the end: the current batch is finished. A second call aborts it; the server rolls it back.

        Takes no lock, so signal handlers and other threads may call it.
        """
        if self._lifecycle.request_stop():
            self._statements.abort()

    def health(self) -> Health:
        """Report whether it purges: it runs, and its last pass did not fail. Never raises; sends no query."""
        return Health(status=self._lifecycle.status, reason=self._failed_with)

    def close(self) -> None:
        """Stop and wait for the end. The engine stays open. May be called twice."""
        self._lifecycle.stop()
        self._lifecycle.wait_ended()

    def __enter__(self) -> Self:
        self._lifecycle.start(in_background=True)
        threading.Thread(target=self._run, name="conquiet-purger", daemon=True).start()
        return self

    # ------------------------------------------------------------ inside

    def _pass(self) -> None:
        try:
            self.purge_now()
        except ConquietError as error:
            if self._lifecycle.is_forced:
                logger.warning("purger stopped by force; its last batch is rolled back", worker=self.name)
                return
            count(PURGE_ERRORS_TOTAL)
            if isinstance(error, InfrastructureError):
                self._outage.failed(error, address=database_address(self._engine))
            elif not self._failed_with:  # one record; the metric counts on
                logger.failure(logging.WARNING, "purging failed, trying again later", error)
            self._failed_with = f"the last pass failed: {type(error).__name__}"
        else:
            self._outage.succeeded()
            self._failed_with = ""

    def _purge(self, keep_lock: Callable[[], None]) -> int:
        keep, deleted = self._retention, 0
        for box, age_s, metric in (
            (self._inbox, keep.inbox_s, INBOX_PURGED_TOTAL),
            (self._outbox, keep.parked_s, OUTBOX_PURGED_TOTAL),
        ):
            if box is not None and age_s is not None:
                purge_batch = partial(box.purge, self._engine, older_than_s=age_s, batch=keep.batch, max_batches=1)
                purged = self._in_batches(purge_batch, keep_lock)
                count(metric, box.table, n=purged)
                deleted += purged
        if deleted:
            logger.info("old rows purged", worker=self.name, count=deleted)
        return deleted

    def _in_batches(self, delete: Callable[[], int], keep_lock: Callable[[], None]) -> int:
        """Delete batch by batch, with pauses, until a batch is not full."""
        deleted = 0
        self._pace.begin(time.monotonic())
        while not self._lifecycle.is_stopping:
            keep_lock()
            began = time.monotonic()
            found = delete()
            deleted += found
            if found < self._retention.batch:
                self._pace.caught_up()
                break
            now = time.monotonic()
            self._lifecycle.sleep(self._pace.pause_s(now, now - began))
        return deleted

    @contextmanager
    def _exclusive(self) -> Iterator[Callable[[], None] | None]:
        """Hold a lock of the database over all hosts.

        Yields None if another host has it, else a function that keeps it, to be called before each batch. The lock is
        tied to a connection: released immediately if the process dies, within two minutes if the host disappears.
        """
        locks = _LOCKS.get(self._engine.dialect.name)
        if locks is None or pool_capacity(self._engine) == 1:
            yield lambda: None  # SQLite has one writer anyway; elsewhere two purgers only do some work twice
            return
        take, free = locks
        with self._connect() as connection:
            try:
                connection.execution_options(isolation_level="AUTOCOMMIT")
                yield (lambda: _ping(connection)) if take(connection, self._lock) else None
            except SQLAlchemyError as error:  # of this connection; the purge raises DbWriteError
                raise as_write_error(error, _LOCKING) from error
            finally:
                # Released now for the next host: the server may notice a closed connection later.
                with suppress(SQLAlchemyError):
                    connection.execute(free)
                # Closed, and not returned to the pool: that certainly frees the lock, and its timeout was changed.
                connection.invalidate()

    def _connect(self) -> Connection:
        try:
            return self._engine.connect()
        except SQLAlchemyError as error:
            raise as_write_error(error, _LOCKING, connecting=self._engine) from error


def _require_tables(inbox: object, outbox: object) -> None:
    from conquiet.transactional.inbox import Inbox
    from conquiet.transactional.outbox import Outbox

    if inbox is None and outbox is None:
        raise ConfigurationError("a Purger needs an inbox or an outbox")
    # An outbox given as the inbox would lose its parked messages at the age of inbox rows.
    if inbox is not None:
        require_instance("inbox", inbox, Inbox)
    if outbox is not None:
        require_instance("outbox", outbox, Outbox)


def delete_old_rows(
    engine: Engine, statement: TextClause, *, older_than_s: float, batch: int, max_batches: int | None
) -> int:
    """Run a DELETE of ``SqlDialect.delete_oldest`` until it finds fewer rows than a batch; return how many it deleted.

    Args:
        engine: The database of the table.
        statement: The DELETE, with the binds ``ago`` and ``batch``.
        older_than_s: Age of the rows to delete, by the database's clock.
        batch: Rows per transaction.
        max_batches: Maximum number of transactions; None has no limit.
    """
    require_seconds("older_than_s", older_than_s)
    require_positive("batch", batch)
    sql = dialect_named(engine.dialect.name)
    deleted, batches = 0, 0
    while max_batches is None or batches < max_batches:
        with DbSession(engine) as session:
            if sql.isolation is not None:
                session.execute(sql.isolation)
            found = session.execute(statement, {"ago": sql.interval(older_than_s), "batch": batch})
        deleted, batches = deleted + found, batches + 1
        if found < batch:
            break
    return deleted


def _ping(connection: Connection) -> None:
    """Use the connection, so that the server does not close it as idle. Raises if the server has closed it."""
    connection.execute(text("SELECT 1"))


def _take_mysql(connection: Connection, name: str) -> bool:
    """Take the lock, and let the server close the connection soon after the last use."""
    ours = bool(connection.scalar(text("SELECT GET_LOCK(:name, 0)"), {"name": name}) == 1)
    if ours:
        connection.execute(text(f"SET SESSION wait_timeout = {_LOCK_IDLE_S}"))
    return ours


def _take_postgres(connection: Connection, name: str) -> bool:
    """Do what ``_take_mysql`` does. PostgreSQL before 14 cannot close idle sessions."""
    number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), signed=True)
    ours = bool(connection.scalar(text("SELECT pg_try_advisory_lock(:number)"), {"number": number}))
    if ours and (connection.dialect.server_version_info or (0,)) >= _IDLE_SESSIONS_SINCE:
        connection.execute(text(f"SET idle_session_timeout = '{_LOCK_IDLE_S}s'"))
    return ours


_MYSQL_LOCK: Final = (_take_mysql, text("SELECT RELEASE_ALL_LOCKS()"))
_LOCKS: Final = {
    "mysql": _MYSQL_LOCK,
    "mariadb": _MYSQL_LOCK,
    "postgresql": (_take_postgres, text("SELECT pg_advisory_unlock_all()")),
}
"""Take and free the lock, by SQLAlchemy's name of the dialect. The connection holds no other lock."""
