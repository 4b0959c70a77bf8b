"""The envelope is read as it was written, other objects are refused by name, and old versions stay readable."""

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.pretty import pretty_repr

from conquiet.errors import ConfigurationError
from conquiet.processor import envelope as env
from conquiet.processor.envelope import Envelope, EnvelopeError, from_payload, next_attempt, replayed, to_payload

names = st.text(string.ascii_letters + ".:-_é", min_size=1, max_size=env.MAX_NAME)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=8), json_values, max_size=4)
envelopes = st.builds(
    Envelope,
    event=names,
    id=names,
    data=objects,
    attempt=st.integers(1, 1000),
    max_attempts=st.none() | st.integers(1, 1000),
    emitted_ms=st.integers(0, 2**48),
    delay_until_ms=st.none() | st.integers(0, 2**48),
    first_failed_ms=st.none() | st.integers(0, 2**48),
    group=st.none() | names,
    replays=st.integers(0, 100),
    reserved=st.booleans(),
    reserved_ms=st.none() | st.integers(0, 2**48),
)


@given(envelopes)
def test_encoded_data_is_decoded_unchanged(envelope: Envelope) -> None:
    assert from_payload(to_payload(envelope), entry_id="1-1") == envelope


KEYS = ["v", "event", "id", "data", "attempt", "max_attempts", "emitted_ms", "delay_until_ms", "group", "replays", "x"]


@given(st.dictionaries(st.sampled_from(KEYS), json_values | st.just(1)))
def test_any_data_is_an_envelope_or_refused_with_a_constant_reason(payload: dict[str, Any]) -> None:
    """Anything can be in a stream. It must neither crash the reader nor get its content into an error."""
    reason: str | None = None

    try:
        from_payload(payload, entry_id="1-1")
    except EnvelopeError as error:
        reason = error.reason

    assert reason is None or reason in vars(env).values()


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({}, env.NO_ENVELOPE),
        ({"event": "a", "data": {}}, env.NO_ENVELOPE),
        ({"v": 2, "event": "a"}, env.NEWER_VERSION),
        ({"v": "1", "event": "a"}, env.NEWER_VERSION),
        ({"v": 1}, env.BAD_EVENT),
        ({"v": 1, "event": ""}, env.BAD_EVENT),
        ({"v": 1, "event": "a" * 201}, env.BAD_EVENT),
        ({"v": 1, "event": "a", "id": 7}, env.BAD_ID),
        ({"v": 1, "event": "a", "data": [1]}, env.BAD_DATA),
        ({"v": 1, "event": "a", "attempt": 0}, env.BAD_NUMBER),
        ({"v": 1, "event": "a", "attempt": True}, env.BAD_NUMBER),
        ({"v": 1, "event": "a", "emitted_ms": "soon"}, env.BAD_NUMBER),
        ({"v": 1, "event": "a", "delay_until_ms": 10**400}, env.BAD_NUMBER),
        ({"v": 1, "event": "a", "delay_until_ms": float("nan")}, env.BAD_NUMBER),
        ({"v": 1, "event": "a", "emitted_ms": 10**400}, env.BAD_NUMBER),
        ({"v": 1, "event": "a", "attempt": 10**30}, env.BAD_NUMBER),
        ({"v": 1, "event": "a", "replays": 10**30}, env.BAD_NUMBER),
    ],
)
def test_a_payload_that_is_not_an_envelope_is_refused_by_name(payload: dict[str, Any], reason: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        from_payload(payload, entry_id="1-1")

    assert caught.value.reason == reason


@pytest.mark.parametrize("key", ["max_attempts", "delay_until_ms", "group", "replays", "first_failed_ms"])
def test_a_rare_key_of_the_wrong_type_is_refused(key: str) -> None:
    full = to_payload(Envelope("a", "1"))

    with pytest.raises(EnvelopeError):
        from_payload({**full, key: ["x"]}, entry_id="1-1")


def test_the_shortest_envelope_takes_its_id_from_the_entry() -> None:
    assert from_payload({"v": 1, "event": "a"}, entry_id="5-0") == Envelope("a", "5-0")


def test_rare_keys_count_in_a_short_envelope_too() -> None:
    short = {"v": 1, "event": "a", "delay_until_ms": 7.0, "group": "g"}

    assert from_payload(short, entry_id="5-0") == Envelope("a", "5-0", delay_until_ms=7, group="g")


def test_an_envelope_of_the_first_release_stays_readable() -> None:
    """Written out by hand: changing the code must not change what this means."""
    stored = {
        "v": 1,
        "event": "email.send",
        "id": "order-7",
        "attempt": 3,
        "emitted_ms": 1763244000000,
        "data": {"to": "x"},
        "max_attempts": 5,
        "first_failed_ms": 1763244000100,
        "group": "processor",
        "replays": 1,
        "reserved": True,
        "delay_until_ms": 1763244000200,
    }

    assert from_payload(stored, entry_id="1-1") == Envelope(
        "email.send",
        "order-7",
        {"to": "x"},
        3,
        5,
        1763244000000,
        1763244000200,
        1763244000100,
        "processor",
        1,
        reserved=True,
    )


@given(envelopes, names)
def test_the_next_attempt_keeps_identity_data_and_foreign_keys(envelope: Envelope, group: str) -> None:
    payload = {**to_payload(envelope), "of_a_later_release": [1]}

    following = next_attempt(payload, envelope, group=group, entry_id="8-8", failed_ms=77)

    assert following["of_a_later_release"] == [1]
    read = from_payload(following, entry_id="9-9")
    assert (read.event, read.id, read.data, read.attempt) == (
        envelope.event,
        envelope.id,
        envelope.data,
        envelope.attempt + 1,
    )
    assert read.group == group
    assert read.delay_until_ms is None
    assert not read.reserved
    assert read.reserved_ms is None
    assert following["from_entry"] == "8-8"
    assert read.first_failed_ms == (77 if envelope.first_failed_ms is None else envelope.first_failed_ms)


def test_a_message_that_comes_back_later_is_the_same_attempt() -> None:
    envelope = Envelope("a", "1", {"k": 1}, attempt=4, delay_until_ms=9, reserved=True, reserved_ms=3)

    later = env.same_attempt(to_payload(envelope), envelope, group="g", entry_id="8-8", reserved=True)

    assert from_payload(later, entry_id="2-2") == Envelope("a", "1", {"k": 1}, attempt=4, group="g", reserved=True)


def test_a_replayed_message_starts_over_and_remembers_that_it_does() -> None:
    dead = {
        **to_payload(Envelope("a", "1", attempt=5, first_failed_ms=3, replays=1)),
        "foreign": 1,
        "from_entry": "8-8",
    }

    again = replayed(dead, group="g")

    assert again["foreign"] == 1
    assert "from_entry" not in again
    assert from_payload(again, entry_id="2-2") == Envelope("a", "1", group="g", replays=2)


@pytest.mark.parametrize(
    ("event", "message_id", "attempts"),
    [
        ("", "1", None),
        ("a", "", None),
        ("a\nb", "1", None),
        ("a" * 201, "1", None),
        ("a", "1", 0),
        ("a", "1", 2**60),
        ("a", 5, None),
    ],
)
def test_a_caller_cannot_make_an_envelope_that_readers_refuse(
    event: str, message_id: object, attempts: int | None
) -> None:
    with pytest.raises(ConfigurationError):
        env.check_new(event, message_id, attempts)


def test_ids_are_unique_and_data_is_not_shown() -> None:
    assert len({env.new_id() for _ in range(1000)}) == 1000
    envelope = Envelope("a", "1", {"k": "secret"})

    assert "secret" not in repr(envelope)
    assert "secret" not in pretty_repr(envelope)


def test_a_message_that_found_its_handler_forgets_that_it_was_unknown() -> None:
    """Else its next attempt, read by a process without the handler, would have no grace left."""
    payload = to_payload(Envelope("pay", "m", unknown_since_ms=5))
    envelope = from_payload(payload, entry_id="1-1")
    assert envelope.unknown_since_ms == 5

    retried = next_attempt(payload, envelope, group="g", entry_id="1-1", failed_ms=9)
    again = replayed(payload, group="g")

    assert "unknown_since_ms" not in retried
    assert "unknown_since_ms" not in again


@pytest.mark.parametrize(
    "key", ["attempt", "max_attempts", "emitted_ms", "first_failed_ms", "replays", "reserved_ms", "unknown_since_ms"]
)
@pytest.mark.parametrize("value", [-1, 2**53 + 1, 1.5, "7", True])
def test_a_foreign_number_out_of_range_is_no_envelope(key: str, value: object) -> None:
    with pytest.raises(EnvelopeError, match="a number in its envelope"):
        from_payload({"v": 1, "event": "pay", key: value}, entry_id="1-1")
