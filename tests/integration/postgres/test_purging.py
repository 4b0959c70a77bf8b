"""Purging on PostgreSQL: one host at a time, and no other connection of the pool is changed."""

import pytest
from sqlalchemy import Engine, text

from conquiet.transactional import Inbox, Outbox, Purger, create_tables
from conquiet.transactional.purging import DatabaseRetention

OLD = "now() AT TIME ZONE 'UTC' - INTERVAL '31 days'"


@pytest.fixture
def purger(engine: Engine) -> Purger:
    create_tables(engine)
    with engine.begin() as connection:
        kind = connection.scalar(
            text("SELECT data_type FROM information_schema.columns WHERE column_name = 'handled_at'")
        )
        old = OLD if "without" in str(kind) else "now() - INTERVAL '31 days'"
        connection.execute(
            text(
                "INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at) "
                f"SELECT 's', 'g', n::text::bytea, {old} FROM generate_series(1, 2000) AS n"
            )
        )
    return Purger(engine, inbox=Inbox(), outbox=Outbox(), retention=DatabaseRetention(share=1.0, parked_s=60))


def test_old_rows_go_by_one_host_at_a_time(engine: Engine, purger: Purger) -> None:
    other = Purger(engine, inbox=Inbox(), outbox=Outbox())
    with other._exclusive() as ours:
        assert ours is not None
        assert purger.purge_now() == 0

    assert purger.purge_now() == 2_000


def test_the_pool_is_the_same_after_a_pass(engine: Engine, purger: Purger) -> None:
    purger.purge_now()

    with engine.connect() as connection:
        assert connection.scalar(text("SHOW idle_session_timeout")) == "0"
        # Of this database: pg_locks shows the whole server, on which storms of other tests may still end.
        own = "JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()"
        assert connection.scalar(text(f"SELECT COUNT(*) FROM pg_locks l {own} WHERE locktype = 'advisory'")) == 0
