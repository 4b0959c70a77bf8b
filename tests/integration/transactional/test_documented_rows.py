"""A row that another program writes by docs/tables.md is published like a row of the outbox."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine

from conquiet.transactional import OutboxMessage, OutboxRelay, PublishOutcome, create_tables

PAGE = Path(__file__).resolve().parents[3] / "docs" / "tables.md"


class Recording:
    def __init__(self) -> None:
        self.found: list[OutboxMessage] = []

    def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
        self.found += messages
        return [(PublishOutcome.PUBLISHED, "")] * len(messages)


def documented(database: str) -> list[str]:
    (block,) = re.findall(rf"```sql {database}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [statement.strip() for statement in block.split(";")]


@pytest.fixture(params=["mysql", "postgresql"])
def engine(request: pytest.FixtureRequest, db_url: str, postgres_url: str) -> Iterator[Engine]:
    made = create_engine({"mysql": db_url, "postgresql": postgres_url}[request.param])
    create_tables(made)
    yield made
    made.dispose()


def test_a_row_written_as_documented_is_published(engine: Engine) -> None:
    with engine.begin() as connection:
        for statement in documented(engine.dialect.name):
            connection.exec_driver_sql(statement)
    target = Recording()

    with OutboxRelay(engine, {"ledger": target}) as relay:
        assert relay.drain().published == 1
        assert relay.drain().published == 0

    (message,) = target.found
    assert (message.message_id, message.payload, message.key) == ("3f0c1f4f9d634a0e", b'{"amount": 5}', None)
