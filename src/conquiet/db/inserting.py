"""INSERT: no lock, one row per id, whoever was first. SPEC(003 §5.2)."""

import logging
from typing import Any

from conquiet.db import sql
from conquiet.db.batch import Rows
from conquiet.db.columns import spelling_of
from conquiet.db.connections import Checkout, WriterConnections
from conquiet.db.faults import DUPLICATE_KEY, About, Fault, fault_of
from conquiet.db.locking.naming import canonical_id
from conquiet.db.metrics import observe_duplicate
from conquiet.db.models import DbOperation, WriteOutcome
from conquiet.db.running import insert_rows, run, select_ids
from conquiet.db.steps import borrowed, translated
from conquiet.errors import DbWriteError

logger = logging.getLogger(__name__)

_INSERTED = WriteOutcome(rows=1)
_DUPLICATE = WriteOutcome(rows=0, duplicate=True)


class Inserts:
    """Inserts rows; one that is there already is found out, logged and counted, not raised."""

    def __init__(self, id_column: str) -> None:
        self._id_column = id_column

    def one(self, connections: WriterConnections, op: DbOperation) -> WriteOutcome:
        """Insert one row in one round trip: a single statement in autocommit mode is its own transaction."""
        columns = self._columns(op)
        about = About("insert", op.table)
        with borrowed(connections, about, autocommit=True) as checkout:
            try:
                with translated(about, committing=True):
                    run(checkout.conn, sql.insert(op.table, columns), sql.values(op.payload, columns))
                    checkout.commit()
            except DbWriteError as error:
                checkout.abandon(error)
                # Only the duplicate of this very id is suppressed. The same number for another unique
                # key means that the row asked for does not exist. An id that was not written cannot be the
                # duplicate: a row that has it by chance is not the one asked for.
                if not (_is_duplicate(error) and self._writes_id(columns) and self._exists(checkout, op, about)):
                    raise
                return _duplicate(op)
        return _INSERTED

    def many(self, connections: WriterConnections, rows: Rows, outcomes: list[WriteOutcome]) -> None:
        """Insert rows of one shape and append their outcomes, in order.

        Usually one statement. If it meets a duplicate, nothing of it is there: the rows that exist are
        looked up and left out, and if that does not settle it (a race, another unique key, an id twice
        among them, ids that the database makes), the rows go one by one.
        """
        self._check(rows)
        if self._together(connections, rows):
            outcomes += [_INSERTED] * len(rows.ops)
            return
        existing = self._existing(connections, rows) if self._writes_id(rows.columns) else set()
        fresh = [op for op in rows.ops if str(op.id_value) not in existing]
        if not fresh or (len(fresh) < len(rows.ops) and self._together(connections, Rows.of(fresh))):
            outcomes += [_duplicate(op) if str(op.id_value) in existing else _INSERTED for op in rows.ops]
            return
        for op in rows.ops:
            outcomes.append(self.one(connections, op))

    def _together(self, connections: WriterConnections, rows: Rows) -> bool:
        """Insert all rows in one statement. False, and nothing inserted, if one is a duplicate."""
        about = About("insert", rows.table)
        with borrowed(connections, about, autocommit=True) as checkout:
            try:
                with translated(about, committing=True):
                    insert_rows(checkout.conn, rows)
                    checkout.commit()
            except DbWriteError as error:
                checkout.abandon(error)
                if not _is_duplicate(error):
                    raise
                return False
        return True

    def _existing(self, connections: WriterConnections, rows: Rows) -> set[str]:
        """Those ids of the rows that exist, as text."""
        about = About("insert", rows.table)
        with borrowed(connections, about, autocommit=True) as checkout, translated(about):
            found = select_ids(checkout.conn, rows.table, self._id_column, [op.id_value for op in rows.ops])
            return {str(row[0]) for row in found.rows}

    def _exists(self, checkout: Checkout, op: DbOperation, about: About) -> bool:
        with translated(about):
            found = run(checkout.conn, sql.select_id(op.table, self._id_column), {"w0": op.id_value})
            return bool(found.rows)

    def _check(self, rows: Rows) -> None:
        """As ``_columns``, for each row; a look at the whole of them is mostly enough."""
        ids = rows.column(spelling_of(self._id_column, rows.columns))
        if not rows.columns or (ids is not None and ids != [op.id_value for op in rows.ops]):
            for op in rows.ops:
                self._columns(op)

    def _columns(self, op: DbOperation) -> tuple[str, ...]:
        """Return what to write; refuse what cannot be checked afterwards."""
        facts: dict[str, Any] = {"table": op.table, "operation": "insert"}
        columns = tuple(op.payload)
        if not columns:
            raise DbWriteError(f"insert on {op.table} failed: the payload has no column", **facts)
        own = spelling_of(self._id_column, columns)
        if own is not None and not _same_id(op.payload[own], op.id_value):
            raise DbWriteError(
                f"insert on {op.table} failed: id_value and the payload's {self._id_column} name different rows",
                **facts,
            )
        return columns

    def _writes_id(self, columns: tuple[str, ...]) -> bool:
        return spelling_of(self._id_column, columns) is not None


def _same_id(one: Any, other: Any) -> bool:
    return one is other or one == other or canonical_id(one) == canonical_id(other)


def _is_duplicate(error: DbWriteError) -> bool:
    return error.__cause__ is not None and fault_of(error.__cause__) is Fault.DUPLICATE


def _duplicate(op: DbOperation) -> WriteOutcome:
    observe_duplicate(op.table)
    logger.info("duplicate insert suppressed", extra={"table": op.table, "errno": DUPLICATE_KEY})
    return _DUPLICATE
