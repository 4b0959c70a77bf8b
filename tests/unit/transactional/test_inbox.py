"""The inbox on SQLite."""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy.engine import Engine
from tests.unit.transactional.outbox_rows import MESSAGE, rows

from conquiet.db.session import DbSession
from conquiet.errors import (
    ConfigurationError,
    ConflictError,
    DbWriteError,
    LeaseLostError,
    LifecycleError,
    MessageKeyError,
)
from conquiet.queue.models import QueueMessage
from conquiet.transactional import (
    Inbox,
    InboxKey,
    LeaseCheck,
    Outbox,
)


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


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
    """If it counted as a duplicate, the second run would skip the work and commit."""
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


@pytest.mark.parametrize("check", [lambda s: Inbox().once(s, MESSAGE), lambda s: Inbox().once_many(s, [MESSAGE])])
def test_the_result_of_once_without_a_block_cannot_be_tested(engine: Engine, check: Callable[[DbSession], Any]) -> None:
    """It would be true each time, and nothing would be recorded."""
    with DbSession(engine) as session, pytest.raises(LifecycleError, match=r"with inbox\.once"):
        bool(check(session))


@pytest.mark.parametrize(
    "key", [("orders", "billing", "1-0"), "1-0", InboxKey("", "g", "1"), InboxKey("s", "g", "x" * 256)]
)
async def test_a_key_that_cannot_be_stored_is_not_recorded(engine: Engine, key: Any) -> None:
    """A server outside strict mode would cut a long one: two messages would share it."""
    with DbSession(engine) as session, pytest.raises(MessageKeyError):
        Inbox().record(session, key)

    assert rows(engine) == 0


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


def test_inbox_and_lease_check_count_their_results(engine: Engine) -> None:
    source = "counted-stream"
    one, two = (QueueMessage(source, "g", f"{number}-0", {}) for number in range(2))

    for _ in range(3):
        with DbSession(engine) as session, Inbox().once(session, one):
            pass
    with (
        DbSession(engine) as first,
        Inbox().once(first, two),
        pytest.raises(ConflictError),
        DbSession(engine) as second,
        Inbox().once(second, two),
    ):
        pytest.fail("SQLite has one writer")
    with pytest.raises(LeaseLostError), DbSession(engine) as session, LeaseCheck(lambda _: False).once(session, one):
        pass

    counted = {
        outcome: sample("conquiet_inbox_messages_total", source=source, outcome=outcome)
        for outcome in ("first", "duplicate", "conflict")
    }
    assert counted == {"first": 2, "duplicate": 2, "conflict": 1}
    assert sample("conquiet_lease_check_rollbacks_total", source=source) == 1
