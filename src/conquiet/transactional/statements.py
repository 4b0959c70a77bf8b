"""The statements on an inbox and on an outbox. Pure: texts only. ``sql_dialect`` has what differs by database."""

from functools import lru_cache
from typing import Final

from sqlalchemy import TextClause, bindparam, text

from conquiet.transactional.sql_dialect import SqlDialect

_MESSAGE: Final = (
    "o.seq AS seq, o.message_id AS id, o.order_key AS k, o.event AS event, o.payload AS payload, o.attempts AS n, "
    "o.headers AS headers"
)


class InboxStatements:
    """Statements on one inbox table.

    Attributes:
        insert: Writes a row. A row that is there is a duplicate-key error, or a row count of 0.
        find: Reads the digest of a row, as it is committed now.
        delete: Deletes a row.
        touch: Sets the time of a row to now.
    """

    def __init__(self, dialect: SqlDialect, table: str, *, digest: bool) -> None:
        name = dialect.quote(table)
        found = "digest" if digest else "NULL"
        is_key = (
            f"source = {dialect.binary('source')} AND consumer_group = {dialect.binary('grp')} "
            f"AND message_id = {dialect.binary('id')}"
        )
        self.insert = dialect.inbox_insert(name, digest=digest)
        # A locking read: the transaction's snapshot may be older than the row.
        self.find = text(f"SELECT {found} AS digest FROM {name} WHERE {is_key}{dialect.shared_lock}")  # noqa: S608
        self.delete = text(f"DELETE FROM {name} WHERE {is_key}")  # noqa: S608
        self.touch = text(f"UPDATE {name} SET handled_at = {dialect.now} WHERE {is_key}")  # noqa: S608


class OutboxStatements:
    """Statements on one outbox table.

    Attributes:
        insert: Writes a message.
        insert_and_wake: The same, and wakes the relays at COMMIT where the database can.
        backlog: Counts rows by target.
        list_parked: Reads parked rows, the oldest first.
        unpark: Makes a parked row due now.
        exclude_relays: Keeps other relays out until the end of the transaction; None where rows can be locked.
        lock_unkeyed: Locks and returns due rows without an order key.
        scan_keyed: Reads due rows with an order key, not locked.
        scan_keyed_after: The same behind a position.
        due_time: Reads when a row is due.
        lock_heads: Locks rows that are the oldest of their order keys.
        read_keys: Reads the oldest rows of order keys.
        delete: Deletes rows by ``seq``.
        retry: Records a refusal and postpones the row.
        park: Records a refusal and parks the row.
        target_names: Reads the names of all targets with rows.
        overdue: Reads the age of the oldest overdue row of a target.
    """

    def __init__(self, dialect: SqlDialect, table: str) -> None:
        name = dialect.quote(table)
        due = f"target = :target AND parked = 0 AND free = {{free}} AND due_at <= {dialect.now}"
        by_due = "ORDER BY due_at, seq LIMIT :count"
        scan = (
            f"SELECT seq, order_key AS k, {dialect.age_us} AS age FROM {name}{dialect.due_index} "  # noqa: S608
            f"WHERE {due.format(free=0)}"
        )
        refused = f"UPDATE {name} SET attempts = :n, reason = :reason"  # noqa: S608
        message = f"SELECT {_MESSAGE}, {dialect.age_us} AS age, {dialect.created_ms} AS created_ms"
        # LIMIT 1 and not MIN(): MySQL reads the whole key for a MIN() that is correlated.
        head = (
            f"(SELECT e.seq FROM {name} AS e{dialect.key_index} WHERE e.target = o.target "  # noqa: S608
            "AND e.order_key = o.order_key AND e.parked = 0 ORDER BY e.seq LIMIT 1)"
        )
        self.insert = text(dialect.outbox_insert(name, table, wake=False))
        self.insert_and_wake = text(dialect.outbox_insert(name, table, wake=True))
        self.backlog = text(
            "SELECT target, SUM(1 - parked) AS waiting, SUM(parked) AS parked, "  # noqa: S608
            f"MAX(CASE WHEN parked = 0 THEN {dialect.age_us} ELSE 0 END) AS age FROM {name} GROUP BY target"
        )
        self.list_parked = text(
            f"SELECT seq, message_id, target, attempts, reason, {dialect.age_us} AS age FROM {name} "  # noqa: S608
            "WHERE parked = 1 AND seq > :after ORDER BY seq LIMIT :limit"
        )
        self.unpark = text(
            f"UPDATE {name} SET parked = 0, attempts = 0, due_at = {dialect.now} WHERE seq = :seq AND parked = 1"  # noqa: S608
        )
        # SQLite has one writer: being it keeps every other relay out until the end of the transaction.
        self.exclude_relays = None if dialect.has_row_locks else text(f"DELETE FROM {name} WHERE seq = -1")  # noqa: S608
        self.lock_unkeyed = text(
            f"{message} FROM {name} AS o{dialect.due_index} WHERE {due.format(free=1)} {by_due}{dialect.skip_locked}"
        )
        self.scan_keyed = text(f"{scan} {by_due}")
        self.scan_keyed_after = text(f"{scan} AND (due_at > :at OR (due_at = :at AND seq > :after)) {by_due}")
        self.due_time = text(f"SELECT due_at FROM {name} WHERE seq = :seq")  # noqa: S608
        # The last condition keeps locks off rows that are not the oldest of their keys. Their owner will delete
        # them as followers, and two relays that each hold a row the other wants to delete would deadlock.
        self.lock_heads = _with_list(
            f"SELECT o.seq AS seq, o.order_key AS k FROM {name} AS o WHERE o.seq IN :seqs AND o.parked = 0 "  # noqa: S608
            f"AND o.due_at <= {dialect.now} AND o.seq = {head}{dialect.skip_locked}",
            "seqs",
        )
        self.read_keys = _with_list(
            f"{message}, o.due_at <= {dialect.now} AS due FROM {name} AS o{dialect.key_index} "
            "WHERE o.target = :target AND o.order_key IN :keys AND o.parked = 0 AND o.seq <= :last "
            "ORDER BY o.seq LIMIT :count",
            "keys",
        )
        self.delete = dialect.delete_listed(name)
        self.retry = text(f"{refused}, due_at = {dialect.later} WHERE seq = :seq")
        self.park = text(f"{refused}, parked = 1 WHERE seq = :seq")
        # Both walk an index from one value to the next: their cost does not grow with the rows that wait.
        self.target_names = text(dialect.target_names(name))
        self.overdue = text(
            f"SELECT {dialect.age_us} AS age FROM {name}{dialect.due_index} WHERE target = :target AND parked = 0 "  # noqa: S608
            f"AND free = :free AND due_at < {dialect.ago} ORDER BY due_at, seq LIMIT 1"
        )


@lru_cache(256)
def inbox_statements(dialect: SqlDialect, table: str, *, digest: bool = True) -> InboxStatements:
    """Return the statements on an inbox, built once; without ``digest`` for a table of an earlier version."""
    return InboxStatements(dialect, table, digest=digest)


@lru_cache(256)
def outbox_statements(dialect: SqlDialect, table: str) -> OutboxStatements:
    """Return the statements on an outbox, built once."""
    return OutboxStatements(dialect, table)


def _with_list(statement: str, name: str) -> TextClause:
    return text(statement).bindparams(bindparam(name, expanding=True))
