from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from conquiet.config import QueueConfig
from conquiet.core.entry_format import EntryFormat, identity_of, join_fields
from conquiet.core.json_codec import CodecError
from conquiet.errors import ConfigurationError
from conquiet.processor.foreign_format import EnvelopeFormat
from conquiet.runtime.settings import RuntimeSettings

FIELDS = [b"order", b"17", b"secret", b"4711"]


def texts(fields: dict[str, bytes]) -> dict[str, str]:
    return {name: value.decode() for name, value in fields.items()}


def test_a_function_reads_the_fields_by_name() -> None:
    assert EntryFormat(texts).read("1-0", FIELDS, max_bytes=100)[0] == {"order": "17", "secret": "4711"}


def test_the_bytes_of_an_entry_do_not_depend_on_the_function() -> None:
    numbers = iter(range(2))
    counting = EntryFormat(lambda _: {"number": next(numbers)})

    (one, first), (other, second) = (counting.read("1-0", FIELDS, max_bytes=100) for _ in range(2))

    assert one != other
    assert first == second


def test_entries_that_differ_never_look_the_same() -> None:
    assert join_fields([b"a", b"bc"]) != join_fields([b"ab", b"c"])


def fails(fields: dict[str, bytes]) -> dict[str, Any]:
    raise KeyError(fields["secret"])


@pytest.mark.parametrize(
    ("decode", "reason"),
    [
        (fails, "decode() raised KeyError"),
        (list, "decode() did not return a mapping"),
        (lambda fields: {1: fields}, "it has a key that is not a string"),
    ],
)
def test_an_entry_that_cannot_be_read_is_refused_without_a_value(decode: Callable[..., Any], reason: str) -> None:
    with pytest.raises(CodecError) as refused:
        EntryFormat(decode).read("1-0", FIELDS, max_bytes=100)

    assert refused.value.reason == reason
    assert refused.value.__context__ is None


def test_a_large_entry_is_refused_before_the_function_is_called() -> None:
    with pytest.raises(CodecError, match="larger than max_payload_bytes"):
        EntryFormat(fails).read("1-0", FIELDS, max_bytes=10)


@pytest.mark.parametrize("settings", [RuntimeSettings, partial(QueueConfig, "stream", "group", "name")])
def test_a_decode_that_cannot_work_is_refused_when_it_is_given(settings: Callable[..., Any]) -> None:
    async def waits(fields: dict[str, bytes]) -> Mapping[str, Any]:
        return fields

    def without_argument() -> dict[str, Any]:
        return {}

    with pytest.raises(ConfigurationError, match="decode must be a function from the fields of an entry"):
        settings(decode="utf-8")
    with pytest.raises(ConfigurationError, match="decode must be a plain function"):
        settings(decode=waits)
    with pytest.raises(ConfigurationError, match="decode"):
        settings(decode=without_argument)


def paid(fields: dict[str, bytes]) -> dict[str, Any]:
    return {"event": "order.paid", "data": texts(fields)}


def test_a_processor_reads_its_own_messages_and_those_of_others() -> None:
    both = EnvelopeFormat(paid)
    own = [b"data", b'{"v":1,"event":"order.paid","id":"m1"}']

    assert both.read("1-0", own, max_bytes=1_000) == ({"v": 1, "event": "order.paid", "id": "m1"}, own[1])
    payload, raw = both.read("1-0", FIELDS, max_bytes=1_000)

    assert (payload["v"], payload["event"], payload["data"]["order"]) == (1, "order.paid", "17")
    assert b'"order":"17"' in raw


def test_one_field_data_without_an_envelope_is_an_entry_of_others() -> None:
    payload, _ = EnvelopeFormat(paid).read("1-0", [b"data", b'{"order":17}'], max_bytes=1_000)

    assert payload["data"] == {"data": '{"order":17}'}


def test_a_foreign_message_has_the_same_id_at_each_delivery() -> None:
    """An inbox compares ids. A digest of what decode returns would differ if decode adds the time."""
    payload, _ = EnvelopeFormat(paid).read("5-1", FIELDS, max_bytes=1_000)

    assert payload["id"] == identity_of("5-1", FIELDS)
    assert payload["id"] != identity_of("5-1", FIELDS[:2])
