"""The statements on an inbox and on an outbox, by what they are for. ``sql_dialect`` writes their text."""

from dataclasses import dataclass

from sqlalchemy import TextClause


@dataclass(frozen=True, slots=True)
class InboxStatements:
    """Statements on one inbox table.

    Attributes:
        insert: Writes a row. A row that is there is a duplicate-key error, or a row count of 0.
        find: Reads the digest of a row, as it is committed now.
        delete: Deletes a row.
        touch: Sets the time of a row to now.
    """

    insert: TextClause
    find: TextClause
    delete: TextClause
    touch: TextClause


@dataclass(frozen=True, slots=True)
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

    insert: TextClause
    insert_and_wake: TextClause
    backlog: TextClause
    list_parked: TextClause
    unpark: TextClause
    exclude_relays: TextClause | None
    lock_unkeyed: TextClause
    scan_keyed: TextClause
    scan_keyed_after: TextClause
    due_time: TextClause
    lock_heads: TextClause
    read_keys: TextClause
    delete: TextClause
    retry: TextClause
    park: TextClause
    target_names: TextClause
    overdue: TextClause
