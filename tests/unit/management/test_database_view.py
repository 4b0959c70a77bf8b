"""Sizes and parked messages, on SQLite."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import StaticPool

from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, DbWriteError
from conquiet.management import database_view as operators
from conquiet.management.database_view import DatabaseView, InboxSize
from conquiet.transactional import Inbox, InboxKey, Outbox, create_tables


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = create_engine("sqlite://", poolclass=StaticPool)
    create_tables(made)
    yield made
    made.dispose()


def add(engine: Engine, *targets: str) -> None:
    with DbSession(engine) as session:
        for target in targets:
            Outbox().add(session, target, {})


def test_an_empty_inbox_has_no_oldest_row(engine: Engine) -> None:
    assert DatabaseView(engine).inbox() == InboxSize(0, complete=True, oldest_age_s=None)


def test_counting_ends_at_the_limit(engine: Engine) -> None:
    with DbSession(engine) as session:
        for number in range(5):
            Inbox().record(session, InboxKey("s", "g", str(number)))

    size = DatabaseView(engine).inbox(most_rows=3)

    assert (size.rows, size.complete) == (3, False)
    assert size.oldest_age_s is not None
    assert DatabaseView(engine).inbox(most_rows=5).complete


def test_a_missing_inbox_names_the_remedy() -> None:
    engine = create_engine("sqlite://")

    with pytest.raises(DbWriteError, match="conquiet db init"):
        DatabaseView(engine).inbox()
    engine.dispose()


def test_the_oldest_backlog_comes_first(engine: Engine) -> None:
    add(engine, "young", "old")
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE conquiet_outbox SET created_at = '2020-01-01' WHERE target = CAST('old' AS BLOB)")
        )

    assert [one.target for one in DatabaseView(engine).backlog()] == ["old", "young"]


def test_all_pages_of_parked_messages_are_released(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_PAGE", 2)
    add(engine, *["mail", "ledger"] * 4)
    with engine.begin() as connection:
        connection.execute(text("UPDATE conquiet_outbox SET parked = 1"))

    assert DatabaseView(engine).unpark_all(target="ledger") == 4
    assert {one.target for one in Outbox().parked(engine)} == {"mail"}
    assert DatabaseView(engine).unpark_all() == 4
    assert Outbox().parked(engine) == []


def test_a_name_that_is_no_table_is_refused(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="inbox must be 'table' or"):
        DatabaseView(engine, inbox="inbox; DROP TABLE orders")


def test_a_number_that_no_row_can_have_is_not_parked(engine: Engine) -> None:
    assert DatabaseView(engine).unpark([-1, 0, 17, 10**30]) == 0
