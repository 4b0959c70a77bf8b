"""UPDATE: lock, read, write, COMMIT, release the lock, all on one connection. SPEC(003 §5.2, §5.10).

See docs/decisions/0001.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from conquiet.core.validation import require_identifier
from conquiet.db import sql
from conquiet.db.connection_cleanup import clean_up
from conquiet.db.driver_errors import number_of
from conquiet.db.errors import OperationInfo
from conquiet.db.locking.base import LockBackend
from conquiet.db.locking.strategy import LockStrategy
from conquiet.db.metrics import measured_lock
from conquiet.db.models import DbOperation, WriteOutcome
from conquiet.db.scopes import checked_out, translate_errors
from conquiet.db.statement_execution import execute
from conquiet.db.writer_pool import Checkout, WriterPool
from conquiet.errors import ConfigurationError, LockAcquisitionError, LockedWriteError, NoSuchRowError

Row = Mapping[str, Any]
Change = Callable[[Row], Row | None]

_NOTHING = WriteOutcome(rows=0)
_LOCKED_NOT_READ: Row = {}


class Updates:
    """Update rows under one lock strategy.

    Args:
        id_column: Column that identifies a row.
        strategy: Label of the metrics.
        backend: The strategy's lock; None for NONE.
    """

    def __init__(self, id_column: str, strategy: LockStrategy, backend: LockBackend | None) -> None:
        self._id_column = id_column
        self._strategy = strategy
        self._backend = backend

    @property
    def backend(self) -> LockBackend | None:
        """The lock of the strategy; None for NONE."""
        return self._backend

    def one(self, pool: WriterPool, op: DbOperation) -> WriteOutcome:
        """Set the payload's columns, except the id column, where the id is the operation's."""
        if not self._settable(op.payload):
            return _NOTHING
        if self._backend is None:
            return self._alone(pool, op)
        info = OperationInfo("update", op.table)
        # One statement is its own transaction. If the lock needs no surrounding transaction, COMMIT is saved.
        with (
            checked_out(pool, info, autocommit=None if self._backend.outlives_commit else False) as checkout,
            self._holding(checkout, op, info, reading=False) as row,
        ):
            outcome = _NOTHING if row is None else self._write(checkout, op, op.payload, info)
            with translate_errors(info, committing=True):
                checkout.commit()
        return outcome

    def modify(self, pool: WriterPool, op: DbOperation, change: Change) -> WriteOutcome:
        """Read the row under the lock and write the values that ``change(row)`` returns."""
        info = OperationInfo("update", op.table)
        with (
            checked_out(pool, info, autocommit=False) as checkout,
            self._holding(checkout, op, info, reading=True) as row,
        ):
            new = None if row is None else self._validated(change(row))
            outcome = self._write(checkout, op, new, info) if new else _NOTHING
            with translate_errors(info, committing=True):
                checkout.commit()
        return outcome

    def _alone(self, pool: WriterPool, op: DbOperation) -> WriteOutcome:
        """Send one statement in autocommit mode: its own transaction, one round trip."""
        info = OperationInfo("update", op.table)
        with checked_out(pool, info, autocommit=True) as checkout, translate_errors(info, committing=True):
            matched = self._send(checkout, op, op.payload)
            checkout.commit()
        return WriteOutcome(rows=matched)

    @contextmanager
    def _holding(
        self, checkout: Checkout, op: DbOperation, info: OperationInfo, *, reading: bool
    ) -> Iterator[Row | None]:
        """Hold the lock around a body that ends with COMMIT; release it after COMMIT or ROLLBACK.

        Yields the row if ``reading``, and None if there is no such row.
        """
        held = self._backend is not None
        try:
            row = self._acquire(checkout, op, info, reading=reading)
        except NoSuchRowError:
            held, row = False, None
        try:
            yield row
        except BaseException as error:
            # Before the release below: the next owner of the lock must neither see nor wait for what is rolled back.
            checkout.abort(error)
            raise
        finally:
            if held and self._backend is not None:
                clean_up(partial(self._backend.release, checkout.conn, op))

    def _acquire(self, checkout: Checkout, op: DbOperation, info: OperationInfo, *, reading: bool) -> Row | None:
        """Take the lock as the first step of the transaction; then read, if ``reading``."""
        backend = self._backend
        if backend is None:
            with translate_errors(info):
                found = execute(checkout.conn, sql.select_row(op.table, self._id_column), {"w0": op.id_value})
                return found.first()
        try:
            with measured_lock(self._strategy), translate_errors(info):
                if reading:
                    return backend.acquire_and_read(checkout.conn, op, self._id_column)
                backend.acquire(checkout.conn, op)
                return _LOCKED_NOT_READ
        except NoSuchRowError:
            raise
        except LockAcquisitionError as error:
            raise _locked_write_error(error, info) from error.__cause__ or error

    def _write(self, checkout: Checkout, op: DbOperation, values: Row, info: OperationInfo) -> WriteOutcome:
        with translate_errors(info, committing=checkout.autocommit):
            return WriteOutcome(rows=self._send(checkout, op, values))

    def _send(self, checkout: Checkout, op: DbOperation, values: Row) -> int:
        settable = self._settable(values)
        statement = sql.update(op.table, settable, self._id_column)
        return execute(checkout.conn, statement, sql.values(values, settable) | {"w0": op.id_value}).rowcount

    def _settable(self, values: Row) -> tuple[str, ...]:
        return sql.exclude(self._id_column, tuple(values))

    def _validated(self, new: Row | None) -> Row | None:
        """Return the values of ``change`` if they can be written; None if there is nothing to write."""
        if new is None:
            return None
        if not isinstance(new, Mapping):
            raise ConfigurationError("change must return a mapping of columns to values, or None")
        for column in new:
            require_identifier("a column that change returned", column)
        return new if self._settable(new) else None


def _locked_write_error(error: LockAcquisitionError, info: OperationInfo) -> LockedWriteError:
    return LockedWriteError(
        f"{info} failed: {error}",
        table=info.table,
        operation=info.operation,
        errno=number_of(error.__cause__) if error.__cause__ is not None else None,
        resource=error.resource,
        waited_s=error.waited_s,
        holder=error.holder,
    )
