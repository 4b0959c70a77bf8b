"""The SQL of the inbox and the outbox in which databases differ.

Pure: texts only. ``statements`` builds the statements, ``batch_sql`` those on many rows. A database is a subclass
of ``SqlDialect`` that sets the fragments in which it differs, and overrides a statement where a fragment is not enough.
Column names need no quotes on any of them; table names are quoted.

Times are compared by the database's clock, so hosts with different clocks agree on what is due.
``UTC_TIMESTAMP`` and not ``NOW``: a session's time zone may have an hour that happens twice.
"""

import hashlib
from typing import ClassVar, Final

from sqlalchemy import TextClause, text

from conquiet.db.commit_status import RETURNING
from conquiet.db.sql import quoted
from conquiet.errors import ConfigurationError

_MAX_CHANNEL: Final = 63


class SqlDialect:
    """One database.

    Attributes:
        schema_file: The statements that create the tables.
        returns_transaction: Whether the INSERT of an inbox row returns the id of the transaction.
        now: The current time.
        later: The current time plus the bind ``later``.
        ago: The current time minus the bind ``ago``.
        age_us: Microseconds since ``created_at``.
        created_ms: ``created_at`` in milliseconds since the epoch.
        shared_lock: Makes a SELECT read what is committed now, and not the transaction's snapshot.
        skip_locked: Makes a SELECT lock its rows and skip rows that another transaction has locked.
        due_index: Names the index by due time, after a table's name. Without it the optimizer may walk the primary key
            for an ORDER BY seq LIMIT 1, over every row that waits.
        key_index: The same for the index by order key.
        digest_type: Type of the column ``digest``.
        has_row_locks: Whether single rows can be locked.
        mark: Quotation mark of identifiers.
        isolation: Statement that makes the transaction READ COMMITTED, sent first in it; None where there is no need.
    """

    schema_file: ClassVar[str]
    returns_transaction: ClassVar[bool] = False
    now: ClassVar[str]
    later: ClassVar[str]
    ago: ClassVar[str]
    age_us: ClassVar[str]
    created_ms: ClassVar[str]
    shared_lock: ClassVar[str] = ""
    skip_locked: ClassVar[str] = ""
    due_index: ClassVar[str] = ""
    key_index: ClassVar[str] = ""
    digest_type: ClassVar[str]
    has_row_locks: ClassVar[bool] = True
    mark: ClassVar[str] = "`"
    isolation: ClassVar[str | None] = None

    def quote(self, table: str) -> str:
        """Return a validated ``table`` or ``schema.table`` in this database's quotes."""
        return quoted(table, self.mark)

    def interval(self, seconds: float) -> int | float | str:
        """Return the value of a bind ``later`` or ``ago``."""
        return round(seconds * 1_000_000)

    def binary(self, name: str) -> str:
        """Return the placeholder of a bind of bytes."""
        return f":{name}"

    def bind_binary(self, value: bytes | None) -> bytes | str | None:
        """Return the value of such a bind."""
        return value

    def delete_oldest(self, table: str, column: str, where: str) -> TextClause:
        """Return a DELETE of at most ``:batch`` rows, the oldest first."""
        raise NotImplementedError

    def delete_listed(self, table: str) -> TextClause:
        """Return a DELETE of the rows with a ``seq`` in ``:seqs``, a JSON array. It must touch no other row."""
        raise NotImplementedError

    # ------------------------------------------------------------------ inbox
    def inbox_insert(self, name: str, *, digest: bool) -> TextClause:
        """Return the INSERT of an inbox row; ``name`` is the quoted table."""
        # A plain INSERT. INSERT IGNORE would take other errors for duplicates, and an upsert would not wait.
        columns, values = "source, consumer_group, message_id, handled_at", ""
        if digest:
            columns, values = f"{columns}, digest", f", {self.binary('digest')}"
        key = ", ".join(map(self.binary, ("source", "grp", "id")))
        return text(f"INSERT INTO {name} ({columns}) VALUES ({key}, {self.now}{values})")  # noqa: S608

    def inbox_purge(self, table: str) -> TextClause:
        """Return the DELETE of at most ``:batch`` inbox rows that are older than ``:ago``."""
        return self.delete_oldest(self.quote(table), "handled_at", f"handled_at < {self.ago}")

    def inbox_count(self, table: str) -> TextClause:
        """Return a query that counts at most ``:limit`` inbox rows."""
        return text(f"SELECT COUNT(*) FROM (SELECT 1 AS one FROM {self.quote(table)} LIMIT :limit) AS counted")  # noqa: S608

    def inbox_oldest(self, table: str) -> TextClause:
        """Return a query for the age of the oldest inbox row, in microseconds."""
        age_us = self.age_us.replace("created_at", "handled_at")
        return text(f"SELECT {age_us} AS age FROM {self.quote(table)} ORDER BY handled_at LIMIT 1")  # noqa: S608

    def add_digest(self, table: str) -> str:
        """Return the statement that adds the column ``digest`` to an inbox of an earlier version."""
        return f"ALTER TABLE {self.quote(table)} ADD COLUMN digest {self.digest_type} NULL"

    # ------------------------------------------------------------------ outbox
    def outbox_insert(self, name: str, table: str, *, wake: bool) -> str:  # noqa: ARG002 - for dialects that can wake
        """Return the INSERT of a message. ``wake`` notifies the relays at COMMIT, where the database can."""
        return (
            f"INSERT INTO {name} (message_id, target, order_key, free, event, payload, headers, created_at, due_at) "  # noqa: S608
            f"VALUES ({self.binary('id')}, {self.binary('target')}, {self.binary('key')}, :free, "
            f"{self.binary('event')}, {self.binary('payload')}, {self.binary('headers')}, {self.now}, {self.later})"
        )

    def target_names(self, name: str) -> str:
        """Return a query for the names of all targets with rows, at a cost that does not grow with the rows."""
        return f"SELECT DISTINCT target FROM {name}{self.due_index}"  # noqa: S608

    def outbox_purge(self, table: str) -> TextClause:
        """Return the DELETE of at most ``:batch`` parked rows that are older than ``:ago``."""
        return self.delete_oldest(self.quote(table), "seq", f"parked = 1 AND created_at < {self.ago}")


class MySqlDialect(SqlDialect):
    """MySQL and MariaDB."""

    schema_file = "schema.sql"
    now = "UTC_TIMESTAMP(6)"
    later = "UTC_TIMESTAMP(6) + INTERVAL :later MICROSECOND"
    ago = "UTC_TIMESTAMP(6) - INTERVAL :ago MICROSECOND"
    age_us = "TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6))"
    created_ms = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at) DIV 1000"
    shared_lock = " LOCK IN SHARE MODE"  # MariaDB does not know FOR SHARE
    skip_locked = " FOR UPDATE SKIP LOCKED"
    due_index = " FORCE INDEX (by_due)"
    key_index = " FORCE INDEX (by_key)"
    digest_type = "VARBINARY(32)"
    # At the default level, REPEATABLE READ, a scan by FOR UPDATE or DELETE that reaches the end of an index keeps every
    # other transaction from inserting there until it commits.
    isolation = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"

    def delete_oldest(self, table: str, column: str, where: str) -> TextClause:
        """See ``SqlDialect.delete_oldest``."""
        return text(f"DELETE FROM {table} WHERE {where} ORDER BY {column} LIMIT :batch")  # noqa: S608

    def delete_listed(self, table: str) -> TextClause:
        """Return a DELETE that reads only the listed rows.

        For an IN over a large part of a small table, which an outbox usually is, MySQL and MariaDB read the table from
        end to end, even with a forced index, and wait for every row that another relay holds. Two relays that do so
        wait for each other: one is rolled back, and publishes its messages again.
        """
        return text(
            "DELETE o FROM JSON_TABLE(:seqs, '$[*]' COLUMNS (seq BIGINT UNSIGNED PATH '$')) AS listed "
            f"STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = listed.seq"
        )


class HexMySqlDialect(MySqlDialect):
    """MySQL through a driver that cannot bind bytes: they are sent as hexadecimal text.

    aiomysql 0.3.2 calls a function of PyMySQL that 1.2 has changed, and raises TypeError for every bind of bytes.
    """

    def binary(self, name: str) -> str:
        """See ``SqlDialect.binary``."""
        return f"UNHEX(:{name})"

    def bind_binary(self, value: bytes | None) -> str | None:
        """See ``SqlDialect.bind_binary``."""
        return None if value is None else value.hex()


_SQLITE_FORMAT: Final = "'%Y-%m-%d %H:%M:%f'"


class SqliteDialect(SqlDialect):
    """SQLite: one writer at a time."""

    schema_file = "schema_sqlite.sql"
    now = f"strftime({_SQLITE_FORMAT}, 'now')"
    later = f"strftime({_SQLITE_FORMAT}, 'now', '+' || :later)"
    ago = f"strftime({_SQLITE_FORMAT}, 'now', '-' || :ago)"
    age_us = "CAST((julianday('now') - julianday(created_at)) * 86400000000 AS INTEGER)"
    created_ms = "CAST(ROUND((julianday(created_at) - 2440587.5) * 86400000) AS INTEGER)"
    digest_type = "BLOB"
    has_row_locks = False

    def interval(self, seconds: float) -> str:
        """Return a modifier of ``strftime``."""
        return f"{seconds:.6f} seconds"

    def delete_oldest(self, table: str, column: str, where: str) -> TextClause:
        """See ``SqlDialect.delete_oldest``."""
        return text(
            f"DELETE FROM {table} WHERE rowid IN "  # noqa: S608
            f"(SELECT rowid FROM {table} WHERE {where} ORDER BY {column} LIMIT :batch)"
        )

    def delete_listed(self, table: str) -> TextClause:
        """See ``SqlDialect.delete_listed``."""
        return text(f"DELETE FROM {table} WHERE seq IN (SELECT value FROM json_each(:seqs))")  # noqa: S608


class PostgresDialect(SqlDialect):
    """PostgreSQL 13 and newer."""

    schema_file = "schema_postgresql.sql"
    returns_transaction = True
    # Not clock_timestamp(): it is volatile, and a condition on it cannot use an index. Not now(): it returns the start
    # of the transaction.
    now = "statement_timestamp()"
    later = "statement_timestamp() + CAST(:later AS double precision) * INTERVAL '1 microsecond'"
    ago = "statement_timestamp() - CAST(:ago AS double precision) * INTERVAL '1 microsecond'"
    age_us = "CAST(EXTRACT(EPOCH FROM statement_timestamp() - created_at) * 1000000 AS bigint)"
    created_ms = "CAST(EXTRACT(EPOCH FROM created_at) * 1000 AS bigint)"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    digest_type = "bytea"
    isolation = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
    mark = '"'

    def interval(self, seconds: float) -> float:
        """Return microseconds."""
        return seconds * 1_000_000

    def inbox_insert(self, name: str, *, digest: bool) -> TextClause:
        """See ``SqlDialect.inbox_insert``."""
        # The error of a duplicate would end the transaction. ON CONFLICT waits for the other run's transaction and then
        # reports 0 or 1 rows. The key is named: a duplicate of any other unique key stays an error.
        plain = super().inbox_insert(name, digest=digest).text
        # It returns the id of the transaction, which resolves a lost reply to COMMIT.
        return text(f"{plain} ON CONFLICT (source, consumer_group, message_id) DO NOTHING RETURNING {RETURNING}")

    def outbox_insert(self, name: str, table: str, *, wake: bool) -> str:
        """See ``SqlDialect.outbox_insert``."""
        plain = super().outbox_insert(name, table, wake=wake)
        if not wake:
            return plain
        # In one statement, so that it costs no further round trip. The server delivers the notification at COMMIT.
        return f"WITH added AS ({plain} RETURNING 1) SELECT pg_notify('{channel_of(table)}', '') FROM added"  # noqa: S608

    def delete_oldest(self, table: str, column: str, where: str) -> TextClause:
        """See ``SqlDialect.delete_oldest``."""
        # Locked while they are chosen: ctid is the place of a row, and an UPDATE moves it.
        return text(
            f"DELETE FROM {table} WHERE ctid = ANY(ARRAY("  # noqa: S608
            f"SELECT ctid FROM {table} WHERE {where} ORDER BY {column} LIMIT :batch FOR UPDATE SKIP LOCKED))"
        )

    def delete_listed(self, table: str) -> TextClause:
        """See ``SqlDialect.delete_listed``."""
        return text(
            f"DELETE FROM {table} WHERE seq = ANY(ARRAY("  # noqa: S608
            "SELECT CAST(value AS bigint) FROM json_array_elements_text(CAST(:seqs AS json))))"
        )

    def target_names(self, name: str) -> str:
        """See ``SqlDialect.target_names``."""
        # SELECT DISTINCT would read every row: PostgreSQL does not step through an index from value to value.
        return (
            f"WITH RECURSIVE names AS ((SELECT target FROM {name} ORDER BY target LIMIT 1) UNION ALL "  # noqa: S608
            f"SELECT (SELECT o.target FROM {name} AS o WHERE o.target > names.target ORDER BY o.target LIMIT 1) "
            "FROM names WHERE names.target IS NOT NULL) SELECT target FROM names WHERE target IS NOT NULL"
        )


def channel_of(table: str) -> str:
    """Return the channel on which PostgreSQL reports new rows of an outbox: its name, with the schema if it has one."""
    # PostgreSQL truncates names to 63 bytes in LISTEN and pg_notify(), but not in the same way: shorten them here.
    return table if len(table) <= _MAX_CHANNEL else f"conquiet_{hashlib.sha256(table.encode()).hexdigest()[:32]}"


DIALECTS: Final[dict[str, SqlDialect]] = {
    "mysql": MySqlDialect(),
    "mariadb": MySqlDialect(),
    "postgresql": PostgresDialect(),
    "sqlite": SqliteDialect(),
}
"""By SQLAlchemy's names."""


_HEX_MYSQL: Final = HexMySqlDialect()


def dialect_named(name: str, driver: str = "") -> SqlDialect:
    """Return the dialect of a database by SQLAlchemy's names (``engine.dialect.name``, ``engine.dialect.driver``).

    Raises:
        ConfigurationError: The inbox and the outbox do not work on this database.
    """
    if driver == "aiomysql":
        return _HEX_MYSQL
    found = DIALECTS.get(name)
    if found is None:
        raise ConfigurationError(f"the inbox and the outbox work on {', '.join(sorted(DIALECTS))}, not on {name}")
    return found
