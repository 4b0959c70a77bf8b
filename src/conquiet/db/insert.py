"""INSERT without a lock: the first writer of an id wins. SPEC(003 §5.2). See docs/decisions/0003."""

from typing import Any

from conquiet.core.log import FactLogger
from conquiet.db import sql
from conquiet.db.errors import DUPLICATE_KEY, OperationInfo, is_duplicate, other_key_error
from conquiet.db.locking.naming import canonical_id
from conquiet.db.models import DbOperation, WriteOutcome
from conquiet.db.scopes import checked_out, translate_errors
from conquiet.db.statement_batch import Rows
from conquiet.db.statement_execution import execute, insert_rows, select_ids
from conquiet.db.writer_pool import Checkout, WriterPool
from conquiet.errors import DbWriteError
from conquiet.metrics.registry import DB_DUPLICATE_INSERTS_TOTAL
from conquiet.metrics.safety import count

logger = FactLogger(__name__)

_INSERTED = WriteOutcome(rows=1)
_DUPLICATE = WriteOutcome(rows=0, duplicate=True)


class Inserts:
    """Insert rows. A row that exists already is logged and counted, not raised."""

    def __init__(self, id_column: str) -> None:
        self._id_column = id_column

    def one(self, pool: WriterPool, op: DbOperation) -> WriteOutcome:
        """Insert one row in one round trip: a single statement in autocommit mode is its own transaction."""
        columns = self._columns(op)
        info = OperationInfo("insert", op.table)
        with checked_out(pool, info, autocommit=True) as checkout:
            try:
                with translate_errors(info, committing=True):
                    execute(checkout.conn, sql.insert(op.table, columns), sql.values(op.payload, columns))
                    checkout.commit()
            except DbWriteError as error:
                checkout.abort(error)
                # Only a duplicate of the same id is suppressed. The same number for another unique
                # key means that the requested row does not exist. If the id was not written, it cannot be the
                # duplicate: a row that has it by chance is another row.
                if not (is_duplicate(error) and self._writes_id(columns)):
                    raise
                if not self._exists(checkout, op, info):
                    raise other_key_error(error, info) from error.__cause__
                return _duplicate(op)
        return _INSERTED

    def many(self, pool: WriterPool, rows: Rows, outcomes: list[WriteOutcome]) -> None:
        """Insert rows of one shape and append their outcomes, in order.

        Usually one statement. If it meets a duplicate, no row of it was inserted: the rows that exist are
        queried and left out. If that fails too (a race, another unique key, an id twice
        among them, ids that the database generates), the rows are inserted one by one.
        """
        self._check(rows)
        if self._together(pool, rows):
            outcomes += [_INSERTED] * len(rows.ops)
            return
        existing = self._existing(pool, rows) if self._writes_id(rows.columns) else set()
        fresh = [op for op in rows.ops if str(op.id_value) not in existing]
        if not fresh or (len(fresh) < len(rows.ops) and self._together(pool, Rows.of(fresh))):
            outcomes += [_duplicate(op) if str(op.id_value) in existing else _INSERTED for op in rows.ops]
            return
        for op in rows.ops:
            outcomes.append(self.one(pool, op))

    def _together(self, pool: WriterPool, rows: Rows) -> bool:
        """Insert all rows in one statement. False, and nothing inserted, if one is a duplicate."""
        info = OperationInfo("insert", rows.table)
        with checked_out(pool, info, autocommit=True) as checkout:
            try:
                with translate_errors(info, committing=True):
                    insert_rows(checkout.conn, rows)
                    checkout.commit()
            except DbWriteError as error:
                checkout.abort(error)
                if not is_duplicate(error):
                    raise
                return False
        return True

    def _existing(self, pool: WriterPool, rows: Rows) -> set[str]:
        """Return the ids that exist, as text."""
        info = OperationInfo("insert", rows.table)
        with checked_out(pool, info, autocommit=True) as checkout, translate_errors(info):
            found = select_ids(checkout.conn, rows.table, self._id_column, [op.id_value for op in rows.ops])
            return {str(row[0]) for row in found.rows}

    def _exists(self, checkout: Checkout, op: DbOperation, info: OperationInfo) -> bool:
        with translate_errors(info):
            found = execute(checkout.conn, sql.select_id(op.table, self._id_column), {"w0": op.id_value})
            return bool(found.rows)

    def _check(self, rows: Rows) -> None:
        """Do what ``_columns`` does for each row; comparing whole columns is mostly enough."""
        ids = rows.column(sql.find_column(self._id_column, rows.columns))
        if not rows.columns or (ids is not None and ids != [op.id_value for op in rows.ops]):
            for op in rows.ops:
                self._columns(op)

    def _columns(self, op: DbOperation) -> tuple[str, ...]:
        """Return the columns to write; reject a payload that cannot be verified afterwards."""
        facts: dict[str, Any] = {"table": op.table, "operation": "insert"}
        columns = tuple(op.payload)
        if not columns:
            raise DbWriteError(f"insert on {op.table} failed: the payload has no column", **facts)
        own = sql.find_column(self._id_column, columns)
        if own is not None and not _same_id(op.payload[own], op.id_value):
            raise DbWriteError(
                f"insert on {op.table} failed: id_value and the payload's {self._id_column} name different rows",
                **facts,
            )
        return columns

    def _writes_id(self, columns: tuple[str, ...]) -> bool:
        return sql.find_column(self._id_column, columns) is not None


def _same_id(one: Any, other: Any) -> bool:
    return one is other or one == other or canonical_id(one) == canonical_id(other)


def _duplicate(op: DbOperation) -> WriteOutcome:
    report_duplicate(op.table)
    return _DUPLICATE


def report_duplicate(table: str) -> None:
    """Count and log a duplicate that was suppressed."""
    count(DB_DUPLICATE_INSERTS_TOTAL, table)
    logger.info("duplicate insert suppressed", table=table, errno=DUPLICATE_KEY)
