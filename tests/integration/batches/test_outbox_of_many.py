"""``Outbox.add_many``: many messages by one statement, in their order; and a relay that is behind."""

from collections.abc import Sequence

import pytest
from sqlalchemy import text
from tests.integration.batches.conftest import Database

from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError
from conquiet.transactional import Outbox, OutboxMessage, OutboxRelay, PublishOutcome
from conquiet.transactional.payload import decode

pytestmark = pytest.mark.timeout(120)


class Recorder:
    """A target that takes everything."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.seen: list[tuple[str, int, str | None]] = []

    def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
        self.batches.append(len(messages))
        self.seen += [(message.message_id, decode(message.payload)["n"], message.event) for message in messages]
        return [(PublishOutcome.PUBLISHED, "")] * len(messages)


def test_many_messages_are_published_with_their_ids_in_their_order(database: Database) -> None:
    target = Recorder()
    with DbSession(database.engine) as session:
        payloads = [{"n": number} for number in range(20)]
        ids = Outbox().add_many(session, "ledger", payloads, ["one key"] * 20, event="booked")

    with OutboxRelay(database.engine, {"ledger": target}) as relay:
        relay.drain()

    assert target.seen == [(message_id, number, "booked") for number, message_id in enumerate(ids)]


def test_a_rollback_takes_all_messages_back(database: Database) -> None:
    def add_and_fail() -> None:
        with DbSession(database.engine) as session:
            Outbox().add_many(session, "ledger", [{"n": 1}, {"n": 2}])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        add_and_fail()

    assert database.count("conquiet_outbox") == 0


def test_a_key_for_each_message_is_asked_for(mysql: Database) -> None:
    with DbSession(mysql.engine) as session, pytest.raises(ConfigurationError, match="one key for each"):
        Outbox().add_many(session, "ledger", [{"n": 1}, {"n": 2}], ["a"])


def test_a_relay_that_is_behind_publishes_more_at_a_time(database: Database) -> None:
    target = Recorder()
    with DbSession(database.engine) as session:
        Outbox().add_many(session, "ledger", [{"n": number} for number in range(300)])

    with OutboxRelay(database.engine, {"ledger": target}, batch=10) as relay:
        relay.drain()

    with database.engine.connect() as connection:
        assert connection.execute(text("SELECT COUNT(*) FROM conquiet_outbox")).scalar_one() == 0
    assert target.batches[0] == 10
    assert max(target.batches) > 10
    assert max(target.batches) <= 100
