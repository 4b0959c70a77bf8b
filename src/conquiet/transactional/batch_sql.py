"""The SQL text that writes and reads many rows of inbox and outbox in one statement. Pure: texts and binds only.

    MySQL, MariaDB    INSERT … SELECT from JSON_TABLE; a duplicate is an error and nothing is written
    PostgreSQL        INSERT … SELECT from a list ON CONFLICT DO NOTHING; it returns which rows were written
    SQLite            none: a statement costs no round trip there, and rows are written one by one

The text does not depend on the number of rows. With a bind for each value, SQLAlchemy would compile and cache one
statement for every number of rows.

See docs/decisions/0024.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec
from sqlalchemy import TextClause, text

from conquiet.db.commit_status import RETURNING
from conquiet.transactional.sql_dialect import MySqlDialect, PostgresDialect, SqlDialect, channel_of

# In hexadecimal, because JSON has no bytes.
_JSON_ROWS: Final = (
    "JSON_TABLE(:rows, '$[*]' COLUMNS (id VARCHAR(510) PATH '$[0]', digest VARCHAR(64) PATH '$[1]')) AS j"
)
_MOST_ROWS: Final = 1_000_000
"""More than any list has: a LIMIT keeps the server from merging the list into the statement around it."""

_encode: Final = msgspec.json.Encoder().encode

_KEY: Final = "source, consumer_group, message_id"


@dataclass(frozen=True, slots=True)
class BatchStatements:
    """Statements on many inbox rows of one source and group. Binds: ``source``, ``grp``, and ``bind_rows()``.

    Attributes:
        insert: Writes rows.
        reports_written: Whether ``insert`` returns one row, and no error for a row that exists: ``written`` has the
            ids that it wrote, in hexadecimal, separated by commas; it is NULL if it wrote all. ``xid`` and
            ``timeline`` are for ``record_transaction``.
        find: Reads ``id`` and ``digest`` of the existing rows, as committed now.
    """

    insert: TextClause
    reports_written: bool
    find: TextClause


@lru_cache(256)
def batch_statements(dialect: SqlDialect, table: str, *, digest: bool = True) -> BatchStatements | None:
    """Return the statements of a database, built once; None where rows are written one by one."""
    name = dialect.quote(table)
    if isinstance(dialect, MySqlDialect):
        return _for_mysql(dialect, name, digest=digest)
    return _for_postgres(dialect, name, digest=digest) if isinstance(dialect, PostgresDialect) else None


def bind_rows(dialect: SqlDialect, ids: Sequence[bytes], digests: Sequence[bytes | None]) -> dict[str, Any]:
    """Return the binds of rows, in the order given: two transactions that agree on it do not deadlock."""
    if isinstance(dialect, PostgresDialect):
        listed = {"ids": ",".join([each.hex() for each in ids])}
        if any(digests):
            listed["digests"] = ",".join(["" if digest is None else digest.hex() for digest in digests])
        return listed
    if not any(digests):
        return {"rows": _json([(each.hex(),) for each in ids])}
    pairs = zip(ids, digests, strict=True)
    return {"rows": _json([(each.hex(), None if digest is None else digest.hex()) for each, digest in pairs])}


def _json(rows: list[Any]) -> str:
    return _encode(rows).decode()


def _for_mysql(dialect: MySqlDialect, name: str, *, digest: bool) -> BatchStatements:
    source, group = dialect.binary("source"), dialect.binary("grp")
    columns, value, found = (", digest", ", UNHEX(j.digest)", "i.digest") if digest else ("", "", "NULL")
    # From the list to the table, row by row by the primary key. The optimizer alone may read a small table from end to
    # end, and wait for the rows of every other transaction.
    # The list is a derived table: MySQL cannot lock JSON_TABLE (error 3569), and MariaDB does not know FOR SHARE OF.
    joined = (
        f"(SELECT j.id FROM {_JSON_ROWS} LIMIT {_MOST_ROWS}) AS j "  # noqa: S608
        f"STRAIGHT_JOIN {name} AS i FORCE INDEX (PRIMARY) ON i.source = {source} "
        f"AND i.consumer_group = {group} AND i.message_id = UNHEX(j.id)"
    )
    return BatchStatements(
        insert=text(
            f"INSERT INTO {name} ({_KEY}, handled_at{columns}) SELECT {source}, {group}, UNHEX(j.id), "  # noqa: S608
            f"{dialect.now}{value} FROM {_JSON_ROWS}"
        ),
        reports_written=False,
        # A locking read: the transaction's snapshot may be older than the row.
        find=text(f"SELECT i.message_id AS id, {found} AS digest FROM {joined}{dialect.shared_lock}"),  # noqa: S608
    )


def _for_postgres(dialect: PostgresDialect, name: str, *, digest: bool) -> BatchStatements:
    columns, value, found = (", digest", ", decode(r.digest, 'hex')", "digest") if digest else ("", "", "NULL")
    # One text for all rows: psycopg binds an array of 200 values in more than twice the time.
    ids = "string_to_array(CAST(:ids AS text), ',')"
    more = ", string_to_array(CAST(:digests AS text), ',', '')" if digest else ""
    listed = f"ARRAY(SELECT decode(r.id, 'hex') FROM unnest({ids}) AS r (id))"  # noqa: S608
    is_listed = f"source = :source AND consumer_group = :grp AND message_id = ANY({listed})"
    return BatchStatements(
        # A row of the result costs the client more than a row of the table costs the server: one row for all. The
        # subquery lists the written rows, and runs only if some were not written.
        insert=text(
            f"WITH added AS (INSERT INTO {name} ({_KEY}, handled_at{columns}) SELECT CAST(:source AS bytea), "  # noqa: S608
            f"CAST(:grp AS bytea), decode(r.id, 'hex'), {dialect.now}{value} FROM unnest({ids}{more}) "
            f"AS r (id{columns}) ON CONFLICT ({_KEY}) DO NOTHING RETURNING message_id) "
            "SELECT CASE WHEN (SELECT count(*) FROM added) = :number THEN NULL ELSE "
            "(SELECT coalesce(string_agg(encode(message_id, 'hex'), ','), '') FROM added) END AS written, "
            f"{RETURNING}"
        ),
        reports_written=True,
        find=text(f"SELECT message_id AS id, {found} AS digest FROM {name} WHERE {is_listed}"),  # noqa: S608
    )


@lru_cache(256)
def outbox_insert_many(dialect: SqlDialect, table: str, *, wake: bool) -> TextClause | None:
    """Return the INSERT of messages of one target, event and delay; None where rows are written one by one.

    Binds: ``target``, ``event``, ``headers``, ``later``, and ``bind_messages()``. Rows get their ``seq`` in the
    order given.
    """
    name = dialect.quote(table)
    columns = "message_id, target, order_key, free, event, payload, headers, created_at, due_at"
    if isinstance(dialect, MySqlDialect):
        listed = (
            "JSON_TABLE(:rows, '$[*]' COLUMNS (id VARCHAR(72) PATH '$[0]', k VARCHAR(510) PATH '$[1]', "
            "payload LONGTEXT PATH '$[2]')) AS j"
        )
        return text(
            f"INSERT INTO {name} ({columns}) SELECT UNHEX(j.id), {dialect.binary('target')}, UNHEX(j.k), "  # noqa: S608
            f"j.k IS NULL, {dialect.binary('event')}, UNHEX(j.payload), {dialect.binary('headers')}, {dialect.now}, "
            f"{dialect.later} FROM {listed}"
        )
    if not isinstance(dialect, PostgresDialect):
        return None
    plain = (
        f"INSERT INTO {name} ({columns}) SELECT r.id, CAST(:target AS bytea), r.k, CASE WHEN r.k IS NULL THEN 1 ELSE 0 "  # noqa: S608
        f"END, CAST(:event AS bytea), r.payload, CAST(:headers AS bytea), {dialect.now}, {dialect.later} "
        "FROM unnest(CAST(:ids AS bytea[]), "
        "CAST(:keys AS bytea[]), CAST(:payloads AS bytea[])) WITH ORDINALITY AS r (id, k, payload, number) "
        "ORDER BY r.number"
    )
    if not wake:
        return text(plain)
    return text(
        f"WITH added AS ({plain} RETURNING 1) SELECT pg_notify('{channel_of(table)}', '') FROM added LIMIT 1"  # noqa: S608
    )


def bind_messages(dialect: SqlDialect, rows: Sequence[tuple[bytes, bytes | None, bytes]]) -> dict[str, Any]:
    """Return the binds of messages: id, order key and payload of each."""
    if isinstance(dialect, PostgresDialect):
        ids, keys, payloads = zip(*rows, strict=True)
        return {"ids": list(ids), "keys": list(keys), "payloads": list(payloads)}
    listed = [(each.hex(), None if key is None else key.hex(), payload.hex()) for each, key, payload in rows]
    return {"rows": _json(listed)}
