"""UPDATE: lock, read, write, COMMIT, give the lock back, all on one connection. SPEC(003 §5.2, §5.10)."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from conquiet.db import columns, sql
from conquiet.db.connections import Checkout, WriterConnections
from conquiet.db.faults import About, number_of
from conquiet.db.locking.base import LockBackend
from conquiet.db.locking.strategy import LockStrategy
from conquiet.db.metrics import observe_lock_acquisition
from conquiet.db.models import DbOperation, WriteOutcome
from conquiet.db.running import run
from conquiet.db.steps import borrowed, translated
from conquiet.errors import ConfigurationError, LockAcquisitionError, LockedWriteError, NoSuchRowError
from conquiet.kernel.validation import require_identifier

Row = Mapping[str, Any]
Change = Callable[[Row], Row | None]

_NOTHING = WriteOutcome(rows=0)
_LOCKED_UNREAD: Row = {}


class Updates:
    """Updates rows under one strategy.

    Args:
        id_column: How a row is found.
        strategy: Named in metrics.
        backend: The strategy's lock; None for NONE.
    """

    def __init__(self, id_column: str, strategy: LockStrategy, backend: LockBackend | None) -> None:
        self._id_column = id_column
        self._strategy = strategy
        self._backend = backend

    def one(self, connections: WriterConnections, op: DbOperation) -> WriteOutcome:
        """Set the payload's columns, except the id column, where the id is the operation's."""
        if not self._settable(op.payload):
            return _NOTHING
        if self._backend is None:
            return self._alone(connections, op)
        about = About("update", op.table)
        # One statement is a transaction by itself. Where the lock does not need one around it, COMMIT is a trip saved.
        with (
            borrowed(connections, about, autocommit=None if self._backend.outlives_commit else False) as checkout,
            self._holding(checkout, op, about, reading=False) as row,
        ):
            outcome = _NOTHING if row is None else self._write(checkout, op, op.payload, about)
            with translated(about, committing=True):
                checkout.commit()
        return outcome

    def modify(self, connections: WriterConnections, op: DbOperation, change: Change) -> WriteOutcome:
        """Read the row under the lock, ask ``change`` what to set, set it."""
        about = About("update", op.table)
        with (
            borrowed(connections, about, autocommit=False) as checkout,
            self._holding(checkout, op, about, reading=True) as row,
        ):
            new = None if row is None else self._checked(change(row))
            outcome = self._write(checkout, op, new, about) if new else _NOTHING
            with translated(about, committing=True):
                checkout.commit()
        return outcome

    def _alone(self, connections: WriterConnections, op: DbOperation) -> WriteOutcome:
        """One statement in autocommit mode: its own transaction, one round trip."""
        about = About("update", op.table)
        with borrowed(connections, about, autocommit=True) as checkout, translated(about, committing=True):
            matched = self._send(checkout, op, op.payload)
            checkout.commit()
        return WriteOutcome(rows=matched)

    @contextmanager
    def _holding(self, checkout: Checkout, op: DbOperation, about: About, *, reading: bool) -> Iterator[Row | None]:
        """Hold the lock around a body that ends with COMMIT; give it back after COMMIT or ROLLBACK.

        Yields the row if it was asked for, and None if it was found out that there is none.
        """
        held = self._backend is not None
        try:
            row = self._acquired(checkout, op, about, reading=reading)
        except NoSuchRowError:
            held, row = False, None
        try:
            yield row
        except BaseException as error:
            # Before the release below: who gets the lock next must not see, nor wait for, what we give up.
            checkout.abandon(error)
            raise
        finally:
            if held and self._backend is not None:
                self._backend.release(checkout.conn, op)

    def _acquired(self, checkout: Checkout, op: DbOperation, about: About, *, reading: bool) -> Row | None:
        """Take the lock, first thing in the transaction; then read, if asked to."""
        backend = self._backend
        if backend is None:
            with translated(about):
                found = run(checkout.conn, sql.select_row(op.table, self._id_column), {"w0": op.id_value})
                return found.first()
        started, had = time.monotonic(), False
        try:
            with translated(about):
                if reading:
                    row: Row | None = backend.acquire_and_read(checkout.conn, op, self._id_column)
                else:
                    backend.acquire(checkout.conn, op)
                    row = _LOCKED_UNREAD
            had = True
        except NoSuchRowError:
            had = True  # not a failure to lock: there was nothing to wait for
            raise
        except LockAcquisitionError as error:
            raise _locked_out(error, about) from error.__cause__ or error
        finally:
            observe_lock_acquisition(self._strategy.value, time.monotonic() - started, had)
        return row

    def _write(self, checkout: Checkout, op: DbOperation, values: Row, about: About) -> WriteOutcome:
        with translated(about, committing=checkout.autocommit):
            return WriteOutcome(rows=self._send(checkout, op, values))

    def _send(self, checkout: Checkout, op: DbOperation, values: Row) -> int:
        settable = self._settable(values)
        statement = sql.update(op.table, settable, self._id_column)
        return run(checkout.conn, statement, sql.values(values, settable) | {"w0": op.id_value}).rowcount

    def _settable(self, values: Row) -> tuple[str, ...]:
        return columns.without(self._id_column, tuple(values))

    def _checked(self, new: Row | None) -> Row | None:
        """Return what ``change`` gave if it can be written; None if there is nothing to write."""
        if new is None:
            return None
        if not isinstance(new, Mapping):
            raise ConfigurationError("change must return a mapping of columns to values, or None")
        for column in new:
            require_identifier("a column that change returned", column)
        return new if self._settable(new) else None


def _locked_out(error: LockAcquisitionError, about: About) -> LockedWriteError:
    return LockedWriteError(
        f"{about} failed: {error}",
        table=about.table,
        operation=about.operation,
        errno=number_of(error.__cause__) if error.__cause__ is not None else None,
        resource=error.resource,
        waited_s=error.waited_s,
        holder=error.holder,
    )
