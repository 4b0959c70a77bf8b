"""The SQL of inbox and outbox: one dialect for each database, and on SQLite the rows that it touches."""

import json

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Engine
from tests.unit.transactional.outbox_rows import add, rows

from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError
from conquiet.transactional import Inbox, InboxKey
from conquiet.transactional.sql_dialect import channel_of, dialect_named
from conquiet.transactional.statements import inbox_statements, outbox_statements

DATABASES = ["mysql", "mariadb", "postgresql", "sqlite"]
SQLITE = dialect_named("sqlite")


def test_a_database_without_a_dialect_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="mariadb, mysql, postgresql, sqlite, not on oracle"):
        dialect_named("oracle")


@pytest.mark.parametrize("database", DATABASES)
def test_the_name_of_a_table_is_quoted_in_every_statement(database: str) -> None:
    dialect = dialect_named(database)
    inbox, outbox = inbox_statements(dialect, "shop.inbox"), outbox_statements(dialect, "shop.outbox")

    mark = '"' if database == "postgresql" else "`"
    for statement in (inbox.insert, inbox.find, inbox.delete, inbox.touch, outbox.insert, outbox.scan_keyed):
        assert f"{mark}shop{mark}.{mark}" in statement.text


def test_aiomysql_gets_bytes_as_hexadecimal_text() -> None:
    """The driver aiomysql 0.3.2 raises TypeError for every bind of bytes."""
    dialect = dialect_named("mysql", "aiomysql")

    assert dialect.bind_binary(b"\x00\xff") == "00ff"
    assert dialect.bind_binary(None) is None
    assert "UNHEX(:source)" in inbox_statements(dialect, "inbox").insert.text
    assert dialect_named("mysql", "pymysql").bind_binary(b"\x00\xff") == b"\x00\xff"


def test_the_channel_of_a_long_table_name_fits_and_stays_distinct() -> None:
    """PostgreSQL cuts a name after 63 bytes, so that two long names could become one channel."""
    long = "a" * 63

    assert channel_of(long) == long
    assert len({channel_of(f"{long}b"), channel_of(f"{long}c")}) == 2
    assert all(len(channel_of(f"{long}{end}")) <= 63 for end in "bc")


def test_a_delete_of_listed_rows_touches_no_other(engine: Engine) -> None:
    add(engine, *"abcd")

    with engine.begin() as connection:
        connection.execute(SQLITE.delete_listed("conquiet_outbox"), {"seqs": json.dumps([2, 3, 99])})
        left = connection.execute(text("SELECT seq FROM conquiet_outbox ORDER BY seq")).scalars().all()

    assert list(left) == [1, 4]


def test_a_purge_deletes_the_oldest_rows_up_to_its_batch(engine: Engine) -> None:
    with DbSession(engine) as session:
        for number in range(5):
            Inbox().record(session, InboxKey("s", "g", str(number)))
    with engine.begin() as connection:
        for number in range(5):
            age = f"UPDATE conquiet_inbox SET handled_at = '2026-01-0{5 - number}' WHERE message_id = :id"
            connection.execute(text(age), {"id": str(number).encode()})

        connection.execute(SQLITE.inbox_purge("conquiet_inbox"), {"ago": SQLITE.interval(60), "batch": 3})
        left = connection.execute(text("SELECT message_id FROM conquiet_inbox ORDER BY handled_at")).scalars().all()

    assert list(left) == [b"1", b"0"]
    assert rows(engine) == 2
