"""The tables of inbox and outbox."""

import pytest
from sqlalchemy.engine import Engine
from tests.unit.transactional.outbox_rows import add, rows

from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError
from conquiet.transactional import (
    Inbox,
    InboxKey,
    Outbox,
    create_tables,
)
from conquiet.transactional.schema import statements


def test_making_the_tables_twice_changes_nothing(engine: Engine) -> None:
    add(engine, "kept")

    create_tables(engine)

    assert rows(engine, "conquiet_outbox") == 1


def test_tables_may_have_other_names(engine: Engine) -> None:
    create_tables(engine, inbox="my_inbox", outbox="my_outbox")

    with DbSession(engine) as session:
        assert Inbox("my_inbox").record(session, InboxKey("s", "g", "1"))
        Outbox("my_outbox").add(session, "t", {"name": "x"})
    assert rows(engine, "my_inbox") == rows(engine, "my_outbox") == 1
    assert rows(engine) == rows(engine, "conquiet_outbox") == 0


@pytest.mark.parametrize("name", ["in`box", "a b", "x; DROP TABLE y", ""])
def test_a_table_name_is_checked_before_it_gets_near_a_statement(name: str) -> None:
    with pytest.raises(ConfigurationError):
        Inbox(name)
    with pytest.raises(ConfigurationError):
        Outbox(name)
    with pytest.raises(ConfigurationError):
        statements("mysql", inbox=name)


def test_the_mysql_tables_are_innodb_and_compare_bytes() -> None:
    inbox, outbox = statements("mysql")

    for statement in (inbox, outbox):
        assert "ENGINE = InnoDB" in statement
        assert "VARCHAR" not in statement
        assert "--" not in statement
