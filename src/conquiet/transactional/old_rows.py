"""Delete rows by age, in short transactions: for ``Inbox.purge`` and ``Outbox.purge``."""

from sqlalchemy import TextClause
from sqlalchemy.engine import Engine

from conquiet.core.validation import require_positive, require_seconds
from conquiet.db.session import DbSession
from conquiet.transactional.sql_dialect import dialect_named


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
