"""Rows of the outbox: written, counted, parked, purged."""

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy.engine import Engine
from tests.unit.transactional.conftest import Recorder
from tests.unit.transactional.outbox_rows import add, rows

from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError
from conquiet.transactional import (
    Outbox,
    OutboxMessage,
    OutboxRelay,
    PublishOutcome,
)


class Refusing:
    """A target that refuses everything, with the reason it is given."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
        return [(PublishOutcome.REFUSED, self.reason)] * len(messages)


def test_add_returns_the_id_that_is_published(engine: Engine, recorder: Recorder) -> None:
    with DbSession(engine) as session:
        ids = [Outbox().add(session, "t", {"name": str(n)}) for n in range(3)]

    OutboxRelay(engine, {"t": recorder}).drain()

    assert recorder.ids == ids
    assert len(set(ids)) == 3


def test_parked_rows_are_purged_by_age_and_waiting_ones_never(engine: Engine, recorder: Recorder) -> None:
    recorder.refuse = {"poison"}
    add(engine, "poison")
    OutboxRelay(engine, {"t": recorder}, max_attempts=1).drain()
    add(engine, "waits", target="elsewhere")
    with DbSession(engine) as session:
        session.execute("UPDATE conquiet_outbox SET created_at = '2020-01-01 00:00:00.000'")

    (parked,) = Outbox().parked(engine)
    for age_s in (parked.age_s, Outbox().backlog(engine)["elsewhere"].oldest_age_s):
        assert 1e8 < age_s < 1e9, "in seconds"
    assert Outbox().purge(engine, older_than_s=60) == 1
    assert rows(engine, "conquiet_outbox") == 1


@pytest.mark.parametrize("wrong", [{"target": ""}, {"target": "x" * 256}, {"key": "k" * 256}, {"delay_s": -1.0}])
def test_a_wrong_argument_writes_nothing(engine: Engine, wrong: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"target": "t", "payload": {}, **wrong}
    with pytest.raises(ConfigurationError), DbSession(engine) as session:
        Outbox().add(session, **arguments)

    assert rows(engine, "conquiet_outbox") == 0


def test_one_string_in_place_of_a_list_of_keys_is_refused(engine: Engine) -> None:
    """Each of its letters would be the key of one message, and their order would be lost."""
    with pytest.raises(ConfigurationError, match="not one string"), DbSession(engine) as session:
        Outbox().add_many(session, "t", [{}] * 4, "same")


def test_many_messages_may_come_from_a_generator(engine: Engine) -> None:
    with DbSession(engine) as session:
        assert len(Outbox().add_many(session, "t", ({"n": n} for n in range(3)), ["a"] * 3)) == 3

    assert rows(engine, "conquiet_outbox") == 3


def test_names_may_be_as_long_as_their_columns(engine: Engine, recorder: Recorder) -> None:
    add(engine, "long", target="x" * 255, key="k" * 255)

    OutboxRelay(engine, {"x" * 255: recorder}).drain()

    assert recorder.names == ["long"]


def test_parked_rows_are_shown_oldest_first_and_at_most_so_many(engine: Engine) -> None:
    add(engine, "a", "b", "c")
    OutboxRelay(engine, {"t": Refusing("no")}, max_attempts=1).drain()

    seqs = [row.seq for row in Outbox().parked(engine)]

    assert len(seqs) == 3
    assert seqs == sorted(seqs)
    assert [row.seq for row in Outbox().parked(engine, limit=2)] == seqs[:2]


def test_a_backlog_counts_waiting_and_parked_rows_apart(engine: Engine) -> None:
    add(engine, "a", "b")
    OutboxRelay(engine, {"t": Refusing("no")}, max_attempts=1).drain()
    add(engine, "c")

    backlog = Outbox().backlog(engine)["t"]

    assert (backlog.waiting, backlog.parked) == (1, 2)


def test_a_reason_is_kept_up_to_what_its_column_holds(engine: Engine) -> None:
    add(engine, "a")
    OutboxRelay(engine, {"t": Refusing("r" * 300)}, max_attempts=1).drain()

    (parked,) = Outbox().parked(engine)

    assert parked.reason == "r" * 255


def test_a_parked_row_does_not_count_for_the_age_of_a_backlog(engine: Engine) -> None:
    """A parked row waits for an operator: its age must not suggest that the relay has stopped."""
    add(engine, "poison")
    OutboxRelay(engine, {"t": Refusing("no")}, max_attempts=1).relay_once()
    with DbSession(engine) as session:
        session.execute("UPDATE conquiet_outbox SET created_at = datetime('now', '-1 hour')")

    backlog = Outbox().backlog(engine)["t"]

    assert (backlog.waiting, backlog.parked, backlog.oldest_age_s) == (0, 1, 0.0)
    assert Outbox().parked(engine)[0].age_s > 3_000
