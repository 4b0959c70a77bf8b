"""One id, two messages: the digest that the inbox stores with an id, and its decision about a repeated id."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Engine, create_engine

from conquiet.core import tracing
from conquiet.core.json_codec import encode_payload
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, DbWriteError, LifecycleError
from conquiet.queue.models import QueueMessage
from conquiet.runtime.message import RuntimeMessage
from conquiet.transactional import Inbox, InboxKey, by_outbox_id, create_tables
from conquiet.transactional.payload_digest import digest_of, is_same, key_of_other

FORMER_TABLE = (
    "CREATE TABLE conquiet_inbox (source BLOB NOT NULL, consumer_group BLOB NOT NULL, message_id BLOB NOT NULL, "
    "handled_at TEXT NOT NULL, PRIMARY KEY (source, consumer_group, message_id))"
)


def a_message(payload: dict[str, Any], message_id: str = "7-0", stream: str = "orders") -> QueueMessage:
    return QueueMessage(stream, "billing", message_id, payload).with_bytes(encode_payload(payload, max_bytes=1_000))


def run(engine: Engine, *messages: QueueMessage, inbox: Inbox | None = None) -> list[bool]:
    answers = []
    for message in messages:
        with DbSession(engine) as session, (inbox or Inbox()).once(session, message) as first_time:
            answers.append(first_time)
    return answers


def ids(engine: Engine) -> list[str]:
    with DbSession(engine) as session:
        return [bytes(row["message_id"]).decode() for row in session.fetch_all("SELECT message_id FROM conquiet_inbox")]


@pytest.mark.parametrize(
    ("stored", "digest", "same"),
    [(b"1", b"1", True), (b"1", b"2", False), (None, b"2", True), (b"1", None, True), (None, None, True)],
)
def test_only_two_different_digests_make_two_messages_of_one_id(
    stored: bytes | None,
    digest: bytes | None,
    same: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert is_same(stored, digest) is same


# ------------------------------------------------------------------ ids that a server made
def test_a_repeated_id_with_another_payload_is_a_first_time(engine: Engine) -> None:
    before, after, later = (a_message({"order": number}) for number in range(3))

    assert run(engine, before, after, later) == [True, True, True]
    assert run(engine, before, after, later) == [False, False, False], "each of them is a duplicate from now on"
    assert len(ids(engine)) == 3
    with DbSession(engine) as session:
        assert session.execute_scalar("SELECT COUNT(DISTINCT digest) FROM conquiet_inbox") == 3


def test_a_rolled_back_message_with_a_reused_id_is_done_later(engine: Engine) -> None:
    before, after = a_message({"order": 1}), a_message({"order": 2})
    with pytest.raises(RuntimeError), DbSession(engine) as session, Inbox().once(session, before):
        raise RuntimeError

    assert run(engine, after, before, before, after) == [True, True, False, False]


def test_the_entry_id_from_a_key_function_is_compared_by_payload(engine: Engine) -> None:
    """For a handler that opens its sessions itself, without ``for_runtime``."""
    inbox = Inbox(key=lambda message: InboxKey(message.stream, "g", message.id))
    before, after = (RuntimeMessage("s", "1-0", {}, raw) for raw in (b'{"n":1}', b'{"n":2}'))
    answers = []
    for message in (before, after, before, after):
        with DbSession(engine) as session, inbox.once(session, message) as first_time:
            answers.append(first_time)

    assert answers == [True, True, False, False]


def test_a_row_without_a_digest_is_a_duplicate_as_before(engine: Engine) -> None:
    with DbSession(engine) as session:
        assert Inbox().record(session, InboxKey("orders", "billing", "7-0"))

    assert run(engine, a_message({"order": 1})) == [False]


def test_a_message_without_bytes_to_compare_is_known_by_its_id(engine: Engine) -> None:
    run(engine, a_message({"order": 1}))

    assert run(engine, QueueMessage("orders", "billing", "7-0", {"order": 2})) == [False]


def test_the_payload_itself_is_not_stored(engine: Engine) -> None:
    run(engine, a_message({"email": "jane@example.org"}))

    with DbSession(engine) as session:
        row = session.fetch_one("SELECT * FROM conquiet_inbox")
    assert row is not None
    assert len(row["digest"]) == 32
    assert "jane" not in str(row)


def test_contains_distinguishes_messages_of_one_id(engine: Engine) -> None:
    before, after = a_message({"order": 1}), a_message({"order": 2})
    run(engine, before)

    def contained() -> list[bool]:
        with DbSession(engine) as session:
            return [Inbox().contains(session, message) for message in (before, after)]

    assert contained() == [True, False]
    run(engine, after)
    assert contained() == [True, True]


def test_purging_the_first_message_of_an_id_keeps_the_second(engine: Engine) -> None:
    """Its row has another key. Without the row of the plain id, that key would never be searched."""
    first, second = a_message({"order": 1}), a_message({"order": 2})
    run(engine, first)
    with DbSession(engine) as session:
        session.execute("UPDATE conquiet_inbox SET handled_at = '2020-01-01 00:00:00.000000'")
    assert run(engine, second) == [True]

    Inbox().purge(engine, older_than_s=3_600)

    assert run(engine, second, first) == [False, False]


def test_a_reused_id_is_counted_and_logged_without_its_payload(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    stream = "reused-ids"
    messages = [a_message({"email": f"{name}@example.org"}, stream=stream) for name in ("jane", "john")]

    with caplog.at_level(logging.WARNING):
        run(engine, *messages, *messages)

    counted = {
        outcome: REGISTRY.get_sample_value("conquiet_inbox_messages_total", {"source": stream, "outcome": outcome})
        for outcome in ("first", "reused_id", "duplicate")
    }
    assert counted == {"first": 1, "reused_id": 1, "duplicate": 2}
    (record,) = caplog.records
    assert "used before by another message" in record.message
    assert "example.org" not in str(record.__dict__)


def test_recording_a_reused_id_twice_in_one_transaction_is_an_error(engine: Engine) -> None:
    """Its row has another key than its id. If it counted as a duplicate, its work would be committed as done."""
    run(engine, a_message({"order": 1}))
    again = a_message({"order": 2})

    with (
        pytest.raises(LifecycleError, match="one place"),
        DbSession(engine) as session,
        Inbox().once(session, again),
        Inbox().once(session, again),
    ):
        pytest.fail("the second one must not be entered")

    assert ids(engine) == ["7-0"]


def test_two_messages_of_one_id_may_share_a_transaction(engine: Engine) -> None:
    with (
        DbSession(engine) as session,
        Inbox().once(session, a_message({"order": 1})) as first,
        Inbox().once(session, a_message({"order": 2})) as second,
    ):
        assert (first, second) == (True, True)


def test_a_digest_and_none_in_one_transaction_are_an_error(engine: Engine) -> None:
    with (
        pytest.raises(LifecycleError),
        DbSession(engine) as session,
        Inbox().once(session, QueueMessage("orders", "billing", "7-0", {})),
        Inbox().once(session, a_message({"order": 1})),
    ):
        pytest.fail("nothing tells them apart")


# ------------------------------------------------------------------ ids that a producer made
def test_a_business_key_is_trusted_whatever_the_payload(engine: Engine) -> None:
    """A producer that sends the same order again may put a new time stamp into it."""
    inbox = Inbox(key=lambda msg: str(msg.payload["order"]))
    sent, sent_again = a_message({"order": 1, "at": 1}, "7-0"), a_message({"order": 1, "at": 2}, "8-0")

    assert run(engine, sent, sent_again, inbox=inbox) == [True, False]


def test_an_outbox_id_is_trusted_and_an_entry_id_is_not(engine: Engine) -> None:
    inbox = Inbox(key=by_outbox_id)
    relayed = [a_message({"_outbox_id": "abc", "n": number}, f"{number}-0") for number in range(2)]
    others = [a_message({"n": number}) for number in range(2)]

    assert run(engine, *relayed, inbox=inbox) == [True, False]
    assert run(engine, *others, *others, inbox=inbox) == [True, True, False, False]


def test_comparing_can_be_asked_for_and_refused(engine: Engine) -> None:
    one, two = a_message({"order": 1}), a_message({"order": 2})

    always = Inbox(key=lambda _: "k", compare_payload=True)
    assert run(engine, one, two, one, two, inbox=always) == [True, True, False, False]
    assert run(engine, one, two, inbox=Inbox(compare_payload=False)) == [True, False]


def test_a_message_without_bytes_is_compared_by_its_payload_on_request() -> None:
    key = InboxKey("s", "g", "k")
    one, same, other = (
        digest_of(QueueMessage("s", "g", "1-0", payload), key, compare=True)
        for payload in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1})
    )

    assert one == same != other
    assert digest_of(QueueMessage("s", "g", "1-0", {"a": object()}), key, compare=True) is None


@pytest.mark.parametrize("length", [1, 190, 191, 255])
def test_the_key_of_another_message_can_always_be_stored(length: int) -> None:
    key = InboxKey("s", "g", "k" * length)
    others = {key_of_other(key, digest) for digest in (b"\1" * 32, b"\2" * 32)}

    assert len(others | {key}) == 3
    assert all(len(other.id.encode()) <= 255 for other in others)
    assert all(other[:2] == ("s", "g") for other in others)


def test_comparing_is_yes_no_or_by_itself() -> None:
    with pytest.raises(ConfigurationError):
        Inbox(compare_payload="yes")  # type: ignore[arg-type]


# ------------------------------------------------------------------ tables of an earlier version
@pytest.fixture
def former(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'former.sqlite'}")
    with DbSession(engine) as session:
        session.execute(FORMER_TABLE)
        session.execute(
            "INSERT INTO conquiet_inbox VALUES (:s, :g, :i, '2026-01-01')",
            {"s": b"orders", "g": b"billing", "i": b"1-0"},
        )
    yield engine
    engine.dispose()


def test_a_table_of_an_earlier_version_works_with_a_warning(former: Engine, caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox()
    with caplog.at_level(logging.WARNING):
        answers = run(former, *(a_message({"n": 1}, i) for i in ("1-0", "2-0", "2-0", "3-0")), inbox=inbox)

    assert answers == [False, True, False, True]
    (record,) = caplog.records
    assert "without the column digest" in record.message
    assert record.__dict__["statement"] == "ALTER TABLE `conquiet_inbox` ADD COLUMN digest BLOB NULL"


def test_contains_works_on_a_table_of_an_earlier_version(former: Engine) -> None:
    with DbSession(former) as session:
        assert Inbox().contains(session, a_message({}, "1-0"))
        assert not Inbox().contains(session, a_message({}, "2-0"))


def test_create_tables_adds_the_digest_to_an_earlier_table(former: Engine) -> None:
    for _ in range(2):
        create_tables(former)

    assert run(former, a_message({"n": 1}, "1-0")) == [False], "its old rows count"
    assert run(former, a_message({"n": 1}, "2-0"), a_message({"n": 2}, "2-0")) == [True, True]


def test_a_missing_table_is_not_taken_for_one_of_an_earlier_version(engine: Engine) -> None:
    inbox = Inbox("made_later")
    with pytest.raises(DbWriteError, match="does not exist"):
        run(engine, a_message({"n": 1}), inbox=inbox)

    create_tables(engine, inbox="made_later")

    assert run(engine, a_message({"n": 1}), a_message({"n": 2}), inbox=inbox) == [True, True]


def test_a_span_shows_what_the_inbox_has_decided(engine: Engine) -> None:
    """A reused id was noted as a duplicate, although its handler ran."""
    noted: list[object] = []

    class Noting:
        def note(self, name: str, value: object) -> None:
            noted.append((name, value))

    tracing.install(Noting())  # type: ignore[arg-type]
    try:
        for payload in ({"n": 1}, {"n": 1}, {"n": 2}):
            with DbSession(engine) as session, Inbox().once(session, a_message(payload)):
                pass
    finally:
        tracing.install(None)

    assert noted == [("inbox.outcome", outcome) for outcome in ("first", "duplicate", "reused_id")]
