"""Inbox, outbox and relay on SQLite: what a user's own unit tests lean on."""

import sqlite3
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from conquiet.core.backoff import Backoff
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, ConflictError, DbWriteError, LeaseLostError, LifecycleError, QueueError
from conquiet.queue.models import QueueMessage
from conquiet.transactional import (
    Inbox,
    InboxKey,
    LeaseCheck,
    Outbox,
    OutboxMessage,
    OutboxRelay,
    PublishOutcome,
    create_tables,
)
from conquiet.transactional.schema import statements

NO_WAIT = Backoff(base_s=0.0, cap_s=0.0)
MESSAGE = QueueMessage("orders", "billing", "1-0", {})


def rows(engine: Engine, table: str = "conquiet_inbox") -> int:
    with DbSession(engine) as session:
        return int(session.execute_scalar(f"SELECT COUNT(*) FROM {table}"))


def add(engine: Engine, *names: str, key: str | None = None, delay_s: float | None = None, target: str = "t") -> None:
    with DbSession(engine) as session:
        for name in names:
            Outbox().add(session, target, {"name": name}, key, delay_s=delay_s)


# ------------------------------------------------------------------ schema
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


# ------------------------------------------------------------------ inbox
def test_a_message_is_first_once_and_a_duplicate_ever_after(engine: Engine) -> None:
    answers = []
    for _ in range(3):
        with DbSession(engine) as session, Inbox().once(session, MESSAGE) as first_time:
            answers.append(first_time)

    assert answers == [True, False, False]
    assert rows(engine) == 1


def test_a_run_that_failed_leaves_nothing_behind(engine: Engine) -> None:
    with pytest.raises(RuntimeError), DbSession(engine) as session, Inbox().once(session, MESSAGE):
        raise RuntimeError

    with DbSession(engine) as session, Inbox().once(session, MESSAGE) as first_time:
        assert first_time


@pytest.mark.parametrize(
    "other",
    [
        QueueMessage("Orders", "billing", "1-0", {}),
        QueueMessage("orders", "Billing", "1-0", {}),
        QueueMessage("orders", "billing", "1-1", {}),
        QueueMessage("orders ", "billing", "1-0", {}),
    ],
)
def test_messages_that_differ_in_a_byte_are_two_messages(engine: Engine, other: QueueMessage) -> None:
    for message in (MESSAGE, other):
        with DbSession(engine) as session, Inbox().once(session, message) as first_time:
            assert first_time


def test_recording_a_message_twice_in_one_transaction_is_an_error(engine: Engine) -> None:
    """Taken for a duplicate, the second one would skip the work, and the commit would say it was done."""
    with (
        pytest.raises(LifecycleError, match="one place"),
        DbSession(engine) as session,
        Inbox().once(session, MESSAGE),
        Inbox().once(session, MESSAGE),
    ):
        pytest.fail("the second one must not be entered")

    assert rows(engine) == 0


def test_another_writer_on_sqlite_is_a_conflict(engine: Engine) -> None:
    with (
        DbSession(engine) as first,
        Inbox().once(first, MESSAGE),
        pytest.raises(ConflictError),
        DbSession(engine) as second,
        Inbox().once(second, MESSAGE),
    ):
        pytest.fail("SQLite has one writer")


def test_a_duplicate_that_is_not_the_inbox_row_is_an_error(engine: Engine) -> None:
    """A trigger of the user's may fail with the same error. Taking it for a duplicate would lose the message."""
    with DbSession(engine) as session:
        session.execute("CREATE TABLE other (id INTEGER PRIMARY KEY)")
        session.execute("INSERT INTO other VALUES (1)")
        session.execute("CREATE TRIGGER tr AFTER INSERT ON conquiet_inbox BEGIN INSERT INTO other VALUES (1); END")

    with pytest.raises(DbWriteError) as caught, DbSession(engine) as session, Inbox().once(session, MESSAGE):
        pytest.fail("must not run")
    assert isinstance(caught.value.__cause__.orig, sqlite3.IntegrityError)  # type: ignore[union-attr]


def test_contains_does_not_record(engine: Engine) -> None:
    with DbSession(engine) as session:
        assert not Inbox().contains(session, MESSAGE)
        assert Inbox().record(session, InboxKey("orders", "billing", "1-0"))
        assert Inbox().contains(session, MESSAGE)


def test_old_rows_are_purged_in_batches_and_young_ones_kept(engine: Engine) -> None:
    with DbSession(engine) as session:
        for number in range(25):
            Inbox().record(session, InboxKey("s", "g", str(number)))
        session.execute("UPDATE conquiet_inbox SET handled_at = '2020-01-01 00:00:00.000' WHERE rowid <= 15")

    assert Inbox().purge(engine, older_than_s=3600, batch=4, max_batches=2) == 8
    assert Inbox().purge(engine, older_than_s=3600, batch=4) == 7
    assert rows(engine) == 10


@pytest.mark.parametrize("wrong", [{"older_than_s": 60, "batch": 0}, {"older_than_s": 0}])
def test_a_purge_of_everything_or_in_batches_of_nothing_is_refused(engine: Engine, wrong: dict[str, Any]) -> None:
    for purge in (Inbox().purge, Outbox().purge):
        with pytest.raises(ConfigurationError):
            purge(engine, **wrong)


# ------------------------------------------------------------------ lease check
@pytest.mark.parametrize("inbox", [None, Inbox()])
def test_a_message_that_was_lost_before_the_commit_has_no_effect(engine: Engine, inbox: Inbox | None) -> None:
    check = LeaseCheck(lambda _: False, inbox)
    with (  # noqa: PT012 - the whole block is one transaction
        pytest.raises(LeaseLostError, match="rolled back"),
        DbSession(engine) as session,
        check.once(session, MESSAGE) as first_time,
    ):
        assert first_time
        Outbox().add(session, "t", {"name": "x"})

    assert rows(engine) == rows(engine, "conquiet_outbox") == 0


def test_a_message_that_is_still_ours_is_committed_and_asked_about_once(engine: Engine) -> None:
    asked: list[Any] = []

    def still_ours(msg: Any) -> bool:
        asked.append(msg)
        return True

    check = LeaseCheck(still_ours, Inbox())

    for _ in range(2):
        with DbSession(engine) as session, check.once(session, MESSAGE):
            pass

    assert asked == [MESSAGE], "a duplicate has nothing to keep out"
    assert rows(engine) == 1


# ------------------------------------------------------------------ outbox and relay
def test_a_message_is_published_if_its_transaction_commits_and_only_then(engine: Engine, recorder: Any) -> None:
    add(engine, "committed")
    with pytest.raises(RuntimeError), DbSession(engine) as session:  # noqa: PT012 - one transaction
        Outbox().add(session, "t", {"name": "rolled back"})
        raise RuntimeError

    done = OutboxRelay(engine, {"t": recorder}).relay_once()

    assert recorder.names == ["committed"]
    assert done.published == 1
    assert rows(engine, "conquiet_outbox") == 0


def test_add_returns_the_id_that_is_published(engine: Engine, recorder: Any) -> None:
    with DbSession(engine) as session:
        ids = [Outbox().add(session, "t", {"name": str(n)}) for n in range(3)]

    OutboxRelay(engine, {"t": recorder}).drain()

    assert recorder.ids == ids
    assert len(set(ids)) == 3


def test_rows_of_other_targets_are_left_alone(engine: Engine, recorder: Any) -> None:
    add(engine, "theirs", target="elsewhere")

    OutboxRelay(engine, {"t": recorder}).drain()

    assert recorder.names == []
    assert rows(engine, "conquiet_outbox") == 1
    assert Outbox().backlog(engine)["elsewhere"].waiting == 1


def test_a_delayed_message_waits_and_holds_back_its_key_only(engine: Engine, recorder: Any) -> None:
    add(engine, "later", key="a", delay_s=60.0)
    add(engine, "behind it", key="a")
    add(engine, "other key", key="b")
    add(engine, "no key")

    OutboxRelay(engine, {"t": recorder}).drain()

    assert sorted(recorder.names) == ["no key", "other key"]


def test_many_rows_of_few_keys_keep_their_order_through_many_batches(engine: Engine, recorder: Any) -> None:
    with DbSession(engine) as session:
        for number in range(100):
            Outbox().add(session, "t", {"name": f"{number % 3}:{number}"}, key=str(number % 3))

    OutboxRelay(engine, {"t": recorder}, batch=7).drain()

    for key in "012":
        numbers = [int(name.split(":")[1]) for name in recorder.names if name.startswith(f"{key}:")]
        assert numbers == sorted(numbers)
    assert len(recorder.names) == 100


def test_a_blocked_key_with_many_rows_does_not_starve_others(engine: Engine, recorder: Any) -> None:
    add(engine, "blocks", key="a", delay_s=60.0)
    add(engine, *(f"tail-{number}" for number in range(60)), key="a")
    add(engine, "behind", key="b")

    OutboxRelay(engine, {"t": recorder}, batch=2).drain()

    assert recorder.names == ["behind"]


def test_a_poison_row_is_parked_with_its_reason_and_blocks_nothing(engine: Engine, recorder: Any) -> None:
    recorder.refuse = {"poison"}
    add(engine, "poison", key="a")
    add(engine, "same key", key="a")
    add(engine, "other")
    relay = OutboxRelay(engine, {"t": recorder}, max_attempts=3, backoff=NO_WAIT)

    first = relay.relay_once()

    assert recorder.names == ["other"]
    assert (first.published, first.refused, first.deferred) == (1, 1, 1)

    relay.drain()

    assert recorder.names == ["other", "same key"]
    (parked,) = Outbox().parked(engine)
    assert (parked.target, parked.attempts, parked.reason) == ("t", 3, "not wanted")

    recorder.refuse = set()
    assert Outbox().unpark(engine, parked.seq)
    assert not Outbox().unpark(engine, parked.seq), "it is not parked any more"
    relay.drain()
    assert recorder.names[-1] == "poison"


@pytest.mark.parametrize("error", [QueueError("gone"), OSError("gone")])
def test_an_unavailable_target_costs_no_attempt_and_delays_no_other(
    engine: Engine, recorder: Any, error: Exception
) -> None:
    down = type(recorder)()
    down.break_with = error
    add(engine, "a", target="down")
    add(engine, "b", target="t")
    relay = OutboxRelay(engine, {"down": down, "t": recorder}, max_attempts=1, backoff=NO_WAIT)

    for _ in range(5):
        relay.relay_once()

    assert recorder.names == ["b"]
    assert Outbox().parked(engine) == []
    down.break_with = None
    relay.drain()
    assert down.names == ["a"]


def test_a_target_that_breaks_over_one_message_is_given_the_others(engine: Engine) -> None:
    """A target of the user's may raise anything; which message was the reason shows when they go one by one."""

    class Brittle:
        def __init__(self) -> None:
            self.taken: list[str] = []

        def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
            if any(b"poison" in message.payload for message in messages):
                raise KeyError("poison")
            self.taken += [message.message_id for message in messages]
            return [(PublishOutcome.PUBLISHED, "")] * len(messages)

    target = Brittle()
    add(engine, "a", "poison", "b", key="k")
    add(engine, "c")

    relay = OutboxRelay(engine, {"t": target}, max_attempts=2, backoff=NO_WAIT)
    first = relay.relay_once()

    assert (first.published, first.refused, first.deferred) == (2, 1, 1), "what follows the poison under its key waits"

    relay.drain()

    assert len(set(target.taken)) == 3
    (parked,) = Outbox().parked(engine)
    assert parked.reason == "KeyError", "the text of an error may quote the payload"


def test_parked_rows_are_purged_by_age_and_waiting_ones_never(engine: Engine, recorder: Any) -> None:
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


def test_names_may_be_as_long_as_their_columns(engine: Engine, recorder: Any) -> None:
    add(engine, "long", target="x" * 255, key="k" * 255)

    OutboxRelay(engine, {"x" * 255: recorder}).drain()

    assert recorder.names == ["long"]


def test_two_relays_on_sqlite_do_not_publish_the_same_row(engine: Engine, recorder: Any) -> None:
    class Watched:
        def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
            with pytest.raises(ConflictError):
                OutboxRelay(engine, {"t": recorder}).relay_once()
            return [(PublishOutcome.PUBLISHED, "")] * len(messages)

    add(engine, "once")

    OutboxRelay(engine, {"t": Watched()}).drain()

    assert recorder.names == []
    assert rows(engine, "conquiet_outbox") == 0


def test_a_relay_without_targets_is_refused(engine: Engine) -> None:
    with pytest.raises(ConfigurationError):
        OutboxRelay(engine, {})


def test_a_relay_lives_once_and_can_be_stopped_before_it_starts(engine: Engine, recorder: Any) -> None:
    relay = OutboxRelay(engine, {"t": recorder})
    relay.stop()

    with pytest.raises(LifecycleError):
        relay.run()


def test_a_stop_ends_the_pause_of_an_idle_relay(engine: Engine, recorder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], list[float]()
    relay = OutboxRelay(engine, {"t": recorder}, poll_s=0.7)

    def sleep(duration_s: float) -> None:
        slept.append(round(duration_s, 3))
        now[0] += duration_s
        if len(slept) == 4:
            relay.stop()

    monkeypatch.setattr("conquiet.transactional.relay.time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    relay.run()

    assert slept == [0.25, 0.25, 0.2, 0.25]
