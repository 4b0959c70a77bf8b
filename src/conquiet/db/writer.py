"""Write one row at a time, safely among any number of writers. SPEC(003 §5.10).

    INSERT              one statement, its own transaction, never a lock; an existing row is not an error
    UPDATE, no lock     one statement, its own transaction
    UPDATE, locked      lock ─▶ (read) ─▶ write ─▶ COMMIT ─▶ release the lock     all on one connection
                          └── failed anywhere: ROLLBACK ─▶ release the lock

The seed releases the lock before the commit. The next owner then reads the old value: 25 of 240
updates were lost on MariaDB that way and 115 on MySQL.

See docs/decisions/0001 and 0003 and 0005.
"""

import time
from collections.abc import Iterable
from typing import Any

from sqlalchemy.engine import Engine

from conquiet.config import DbConfig
from conquiet.core.closing import ClosedAfterUse
from conquiet.core.validation import require_instance
from conquiet.db import statement_batch
from conquiet.db.dialects import require_mysql_locks, require_writer_supported
from conquiet.db.insert import Inserts
from conquiet.db.locking import make_lock_backend
from conquiet.db.locking.base import LockBackend
from conquiet.db.locking.strategy import LockStrategy
from conquiet.db.metrics import count_db_writes, observe_db_latency, observe_db_write
from conquiet.db.models import DbOperation, DbOperationType, WriteOutcome
from conquiet.db.update import Change, Updates
from conquiet.db.writer_pool import WriterPool, writer_pool_of
from conquiet.errors import ConfigurationError, DbWriteError, LifecycleError

_UNSUPPORTED = "unsupported"


class DbWriter(ClosedAfterUse):
    """Write rows of one database under one lock strategy. Threads may share a writer.

    Any failure is a ``DbWriteError`` that names errno, table and operation and no value; the driver's
    error is its cause. A lock that could not be acquired is a ``LockAcquisitionError`` as well. Nothing is
    retried.

    Args:
        engine: For MySQL, MariaDB or SQLite. The writer opens its own connections, separate from the engine's
            pool, with the same settings (docs/decisions/0007); the engine itself is not changed.
        db_config: ``id_column`` identifies rows; ``table_name`` is the table of ``modify``.
        lock_strategy: For UPDATE. Under NONE concurrent read-modify-write loses updates.
        lock_timeout_s: Longest wait for an advisory or table lock; 10 if None. Where the server has whole seconds
            only, a fraction is rounded up. Row locks wait as long as the server's ``innodb_lock_wait_timeout``, so with
            ROW (and NONE) it is a ``ConfigurationError``.
    """

    def __init__(
        self,
        engine: Engine,
        db_config: DbConfig,
        lock_strategy: LockStrategy = LockStrategy.NONE,
        *,
        lock_timeout_s: float | None = None,
    ) -> None:
        self.engine = require_writer_supported(engine)
        self._db_config = require_instance("db_config", db_config, DbConfig)
        backend = make_lock_backend(lock_strategy, db_config, lock_timeout_s=lock_timeout_s)
        self._lock_strategy = lock_strategy
        if lock_strategy is not LockStrategy.NONE:
            require_mysql_locks(engine, f"LockStrategy.{lock_strategy.name}")
        self._inserts = Inserts(db_config.id_column)
        self._updates = Updates(db_config.id_column, lock_strategy, backend)
        self._closed = False
        self._registered: WriterPool | None = None

    @property
    def db_config(self) -> DbConfig:
        """The settings of this writer. Read-only: create another writer for another table or id column."""
        return self._db_config

    @property
    def lock_strategy(self) -> LockStrategy:
        """The strategy this writer was created with. Read-only: create another writer for another strategy."""
        return self._lock_strategy

    @property
    def lock_backend(self) -> LockBackend | None:
        """The lock of the strategy; None under NONE. Assigning one changes the lock of the next operations.

        A running operation keeps the backend it began with. Metrics keep the name of the strategy.
        """
        return self._updates.backend

    @lock_backend.setter
    def lock_backend(self, backend: LockBackend | None) -> None:
        if backend is not None and not isinstance(backend, LockBackend):
            raise ConfigurationError(f"lock_backend must be a LockBackend or None, got a {type(backend).__name__}")
        self._updates = Updates(self._db_config.id_column, self._lock_strategy, backend)

    def execute(self, op: DbOperation) -> WriteOutcome:
        """Write one row and return the outcome."""
        with _measured(op):
            match op.op_type:
                case DbOperationType.INSERT:
                    return self._inserts.one(self._pool(), op)
                case DbOperationType.UPDATE:
                    return self._updates.one(self._pool(), op)
                case _:
                    raise DbWriteError(
                        f"an operation on {op.table} is neither INSERT nor UPDATE; nothing else is supported",
                        table=op.table,
                        operation=_UNSUPPORTED,
                    )

    def execute_many(self, ops: Iterable[DbOperation]) -> list[WriteOutcome]:
        """Write many rows, in order; the outcomes come in the same order.

        Neighbouring INSERTs of the same columns into the same table are sent together, many rows in a
        statement; each such group is committed as a whole. UPDATEs are sent one by one, as by ``execute``.

        If an operation fails, the earlier ones stay committed and ``error.completed`` is their number:
        continue from there.
        """
        outcomes: list[WriteOutcome] = []
        try:
            for group in statement_batch.group_operations(ops):
                if isinstance(group, statement_batch.Rows):
                    self._insert_rows(group, outcomes)
                else:
                    outcomes.append(self.execute(group))
        except DbWriteError as error:
            error.completed = len(outcomes)
            raise
        return outcomes

    def modify(self, id_value: Any, change: Change) -> WriteOutcome:
        """Read a row of ``db_config.table_name`` under the lock, write what ``change(row)`` returns, commit.

        Use this for read-modify-write: a value computed before the lock was taken may be
        stale by the time it is written. ``change`` returns the columns to set, or None to leave the row
        unchanged; it runs while the lock is held, so it should be quick. Its exceptions are
        raised here, after the rollback. A missing row is not an error: ``change`` is not called and the outcome
        has 0 rows.
        """
        op = DbOperation(self.db_config.table_name, DbOperationType.UPDATE, id_value, {})
        with _measured(op):
            return self._updates.modify(self._pool(), op, change)

    def close(self) -> None:
        """Close the writer's own connections, unless another writer of this engine still uses them."""
        if not self._closed:
            self._closed = True
            writer_pool_of(self.engine).unregister(self)

    def _insert_rows(self, rows: statement_batch.Rows, outcomes: list[WriteOutcome]) -> None:
        before, started = len(outcomes), time.monotonic()
        try:
            self._inserts.many(self._pool(), rows, outcomes)
        finally:
            done = len(outcomes) - before  # rows without an outcome failed
            table, op_type = rows.table, DbOperationType.INSERT.value
            count_db_writes(table, op_type, "success", done)
            count_db_writes(table, op_type, "error", len(rows.ops) - done)
            observe_db_latency(table, op_type, time.monotonic() - started)

    def _pool(self) -> WriterPool:
        if self._closed:
            raise LifecycleError("this DbWriter is closed; create a new one")
        # Found again each time: after a fork there is another one.
        pool = writer_pool_of(self.engine)
        if pool is not self._registered:
            pool.register(self)
            self._registered = pool
        return pool


class _measured:  # noqa: N801 - reads as a verb: with _measured(op): ...
    """Count one write and record its time, even if it fails."""

    __slots__ = ("_op", "_started")

    def __init__(self, op: DbOperation) -> None:
        self._op = op

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # A caller without a type checker may have passed anything.
        op_type: object = self._op.op_type
        label = op_type.value if isinstance(op_type, DbOperationType) else _UNSUPPORTED
        status = "success" if error is None else "error"
        observe_db_write(self._op.table, label, status, time.monotonic() - self._started)
