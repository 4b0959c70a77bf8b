"""Promises of outbox, relay and inbox that planted bugs had left unproved."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine

from conquiet.core.backoff import Backoff
from conquiet.db.session import DbSession
from conquiet.errors import MessageKeyError
from conquiet.transactional import InboxKey, Outbox, OutboxMessage, OutboxRelay, PublishOutcome
from conquiet.transactional.inbox_keys import key_of

NO_WAIT = Backoff(base_s=0.0, cap_s=0.0)


def add(engine: Engine, *names: str, key: str | None = None) -> None:
    with DbSession(engine) as session:
        for name in names:
            Outbox().add(session, "t", {"name": name}, key)


class Refusing:
    """A target that refuses everything, with the reason it is given."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
        return [(PublishOutcome.REFUSED, self.reason)] * len(messages)


def test_a_row_that_is_tried_again_has_all_its_attempts(engine: Engine) -> None:
    add(engine, "poison")
    relay = OutboxRelay(engine, {"t": Refusing("no")}, max_attempts=2, backoff=NO_WAIT)
    relay.drain()
    (parked,) = Outbox().parked(engine)
    Outbox().unpark(engine, parked.seq)

    relay.relay_once()

    assert Outbox().parked(engine) == [], "one refusal of two"
    relay.drain()
    assert [row.attempts for row in Outbox().parked(engine)] == [2]


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


def test_a_relay_waits_longer_each_time_for_a_database_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = create_engine("sqlite:////nonexistent/directory/db.sqlite")
    relay = OutboxRelay(
        engine, {"t": Refusing("no")}, poll_s=0.001, backoff=Backoff(base_s=5.0, cap_s=40.0, jitter=0.0)
    )
    waits: list[float] = []

    def note(duration_s: float) -> None:
        waits.append(duration_s)
        if len(waits) == 6:
            relay.stop()

    monkeypatch.setattr(relay, "_sleep", note)
    deadline = time.monotonic() + 30
    relay.run()

    assert time.monotonic() < deadline
    assert waits == [5.0, 0.001, 10.0, 0.001, 20.0, 0.001]


@pytest.mark.parametrize("key", [InboxKey("", "g", "1"), InboxKey("s", "g", "")])
def test_a_key_without_a_source_or_an_id_is_refused(key: InboxKey) -> None:
    with pytest.raises(MessageKeyError, match="empty"):
        key_of({}, lambda _: key)


def test_a_key_without_a_group_is_allowed() -> None:
    assert key_of({}, lambda _: InboxKey("q", "", "1")) == InboxKey("q", "", "1")


def test_a_target_that_stays_away_is_tried_less_and_less_often(engine: Engine) -> None:
    class Away:
        def publish(self, messages: Sequence[OutboxMessage]) -> Any:
            raise OSError("no route to host")

    add(engine, "message")
    relay = OutboxRelay(engine, {"t": Away()}, backoff=Backoff(base_s=100.0, cap_s=1_000.0, jitter=0.0))
    publisher = relay._routes[0].publisher

    waits_s = []
    for _ in range(5):
        publisher._not_before = 0.0
        relay.relay_once()
        waits_s.append(publisher._not_before - time.monotonic())

    assert [round(wait_s / 100) for wait_s in waits_s] == [1, 2, 4, 8, 10]
    assert relay.unavailable_targets == ["t"]


def test_rows_with_and_without_a_key_are_published_oldest_first(engine: Engine, recorder: Any) -> None:
    add(engine, "first", key="k")
    add(engine, "second")
    add(engine, "third", key="k")

    OutboxRelay(engine, {"t": recorder}).relay_once()

    assert recorder.names == ["first", "second", "third"]


def test_a_parked_row_does_not_count_for_the_age_of_a_backlog(engine: Engine) -> None:
    """A parked row waits for an operator: its age must not suggest that the relay has stopped."""
    add(engine, "poison")
    OutboxRelay(engine, {"t": Refusing("no")}, max_attempts=1).relay_once()
    with DbSession(engine) as session:
        session.execute("UPDATE conquiet_outbox SET created_at = datetime('now', '-1 hour')")

    backlog = Outbox().backlog(engine)["t"]

    assert (backlog.waiting, backlog.parked, backlog.oldest_age_s) == (0, 1, 0.0)
    assert Outbox().parked(engine)[0].age_s > 3_000
