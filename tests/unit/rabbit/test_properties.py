"""Properties and tables of headers, as others write them and as we do."""

import math
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pika import spec

from conquiet.rabbit.death_headers import retry_count
from conquiet.rabbit.frames import read_frame
from conquiet.rabbit.properties import Properties, UnencodableError, encode_properties, renewed_properties
from conquiet.rabbit.tables import cut_table, pack_table, read_table

HEADERS, MESSAGE_ID = spec.BasicProperties.FLAG_HEADERS, spec.BasicProperties.FLAG_MESSAGE_ID
MILLISECONDS = b"T" + struct.pack(">Q", 1_700_000_000_000)
DEATH = pack_table({"x-death": [{"count": 3, "queue": "work"}]})[4:]


def fields(*values: bytes) -> bytes:
    """Return a table with the fields a, b, c...: each value is its type and its content."""
    return b"".join(b"\x01" + bytes([97 + number]) + value for number, value in enumerate(values))


def headers(table: bytes, message_id: bytes | None = None) -> bytes:
    """Return raw properties with these headers, and perhaps an id."""
    flags = HEADERS | (0 if message_id is None else MESSAGE_ID)
    rest = b"" if message_id is None else bytes([len(message_id)]) + message_id
    return struct.pack(">HI", flags, len(table)) + table + rest


# ------------------------------------------------------------------ reading
def test_fields_of_every_type_are_read() -> None:
    values = {
        b"t\x01": True,
        b"b\xff": -1,
        b"B\xff": 255,
        b"U\xff\xfe": -2,
        b"s\xff\xfe": -2,
        b"u\xff\xfe": 65534,
        b"I\xff\xff\xff\xff": -1,
        b"i\xff\xff\xff\xff": 2**32 - 1,
        b"l\xff\xff\xff\xff\xff\xff\xff\xff": -1,
        b"L\xff\xff\xff\xff\xff\xff\xff\xfe": -2,
        b"f" + struct.pack(">f", 2.5): 2.5,
        b"d" + struct.pack(">d", 2.75): 2.75,
        b"d" + struct.pack(">d", math.inf): math.inf,
        b"D\x02\x00\x00\x00\x7b": Decimal("1.23"),
        b"S\x00\x00\x00\x02hi": "hi",
        b"S\x00\x00\x00\x01\xff": b"\xff",
        b"x\x00\x00\x00\x02hi": b"hi",
        b"A\x00\x00\x00\x02t\x00": [False],
        b"T\x00\x00\x00\x00\x00\x00\x00\x01": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        b"F\x00\x00\x00\x04\x01kt\x01": {"k": True},
        b"V": None,
    }

    assert list(Properties(headers(fields(*values))).headers.values()) == list(values.values())


@pytest.mark.parametrize(
    "odd",
    [
        MILLISECONDS,
        b"T\xff\xff\xff\xff\xff\xff\xff\xff",
        b"d" + struct.pack(">d", math.nan),
        b"f" + struct.pack(">f", math.inf),
        b"A\x00\x00\x00\x01?",
        b"F\x00\x00\x00\x03\x01k?",
        b"F\x00\x00\x00\x01\xff",
        b"A\x00\x00\x00\x05S\xff\xff\xff\xff",
    ],
)
def test_one_odd_value_hides_neither_its_neighbours_nor_the_message_id(odd: bytes) -> None:
    read = Properties(headers(fields(odd, b"t\x01") + DEATH, b"m1"))

    assert (read.headers["b"], retry_count(read.headers), read.message_id) == (True, 3, "m1")


@pytest.mark.parametrize(
    "broken",
    [b"?", b"S\x00\x00\x00\xffab", b"S\x00", b"l\x00", b""],
    ids=["unknown type", "text too long", "length cut", "number cut", "no value"],
)
def test_a_table_ends_where_the_next_value_cannot_be_found(broken: bytes) -> None:
    read = Properties(headers(DEATH + fields(broken), b"m1"))

    assert (list(read.headers), retry_count(read.headers), read.message_id) == (["x-death"], 3, "m1")


@pytest.mark.parametrize("raw", [struct.pack(">H", HEADERS), struct.pack(">HIB", HEADERS, 2**31, 1), b"", b"\x20"])
def test_a_table_that_is_not_there_is_no_table(raw: bytes) -> None:
    assert Properties(raw).headers is None
    assert Properties(raw).message_id is None


def test_nested_tables_cannot_exhaust_the_stack() -> None:
    value = b"V"
    for _ in range(20_000):
        value = b"A" + struct.pack(">I", len(value)) + value
    read = Properties(headers(fields(value) + DEATH)).headers

    assert retry_count(read) == 3
    depth, inner = 0, read["a"]
    while inner:
        depth, inner = depth + 1, inner[0]
    assert depth == 32


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.sampled_from([b"", b"\xff\xfc", b"\x20\x80", b"\xff\xff"]))
def test_no_bytes_whatsoever_make_properties_raise(raw: bytes, flags: bytes) -> None:
    read = Properties(flags + raw)

    assert read.headers is None or isinstance(read.headers, dict)
    assert read.message_id is None or isinstance(read.message_id, str | bytes)
    assert read.priority is None or 0 <= read.priority <= 255
    read_table(cut_table(raw, {"x-death"}))
    Properties(renewed_properties(read, {"x-death"})).headers  # noqa: B018 - it is read


def test_a_name_that_amqp_does_not_know_is_no_property() -> None:
    with pytest.raises(AttributeError):
        Properties(b"\0\0").nonsense  # noqa: B018 - it raises


@pytest.mark.parametrize("size", range(40))
def test_a_frame_of_properties_is_read_when_it_is_whole(size: int) -> None:
    props = spec.BasicProperties(message_id="m1", headers={"a": 1})
    whole = pika.frame.Header(7, 5, props).marshal()
    used, frame = read_frame(whole[:size])

    if size < len(whole):
        assert (used, frame) == (0, None)
    else:
        assert (used, frame.channel_number, frame.body_size) == (len(whole), 7, 5)
        assert (frame.properties.message_id, frame.properties.headers) == ("m1", {"a": 1})


# ------------------------------------------------------------------ writing
ALL: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "headers": {"a": 1, "b": [None, True, "x", b"y", {"c": 2**40}], "d": Decimal("1.25"), "e": Decimal(1000)},
    "delivery_mode": 2,
    "priority": 255,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "60000",
    "message_id": "m",
    "timestamp": 2**64 - 1,
    "type": "t",
    "user_id": "u",
    "app_id": "a",
    "cluster_id": "k",
}


@pytest.mark.parametrize("names", [list(ALL), ["headers"], ["message_id", "priority"], []])
def test_properties_are_encoded_as_by_pika(names: list[str]) -> None:
    some = {name: ALL[name] for name in names}

    assert encode_properties(some) == b"".join(spec.BasicProperties(**some).encode())


def test_encoded_properties_are_decoded_again() -> None:
    when = datetime(2026, 11, 16, tzinfo=UTC)
    table = {"ratio": 0.5, "when": when, "deep": {"t": (1, 2)}, "min": -(2**63), "mode": None}
    read = Properties(encode_properties({**ALL, "headers": table, "delivery_mode": pika.DeliveryMode.Persistent}))

    assert read.headers == {**table, "deep": {"t": [1, 2]}}
    assert {name: getattr(read, name) for name in ALL if name != "headers"} == {
        name: value for name, value in ALL.items() if name != "headers"
    }


SECRET = "s3cret"
ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "properties",
    [
        {"expiration": 60000},
        {"expiration": SECRET},
        {"expiration": "-1"},
        {"expiration": str(2**32)},
        {"message_id": object()},
        {"message_id": SECRET * 50},
        {"message_id": SECRET + "\ud800"},
        {"priority": 300},
        {"priority": SECRET},
        {"timestamp": -1},
        {"timestamp": datetime(2026, 1, 1, tzinfo=UTC)},
        {SECRET: 1},
        {"headers": {"n": 2**64}},
        {"headers": {"n": math.nan}},
        {"headers": {"n": Decimal("NaN")}},
        {"headers": {"n": Decimal("1e30")}},
        {"headers": {"n": {1, 2}}},
        {"headers": {7: SECRET}},
        {"headers": {SECRET * 50: 1}},
        {"headers": {"n": datetime(1960, 1, 1, tzinfo=UTC)}},
        {"headers": {"n": ENDLESS}},
        {"headers": [SECRET]},
    ],
)
def test_a_value_that_amqp_cannot_hold_is_refused_and_not_quoted(properties: dict[str, Any]) -> None:
    with pytest.raises(UnencodableError) as caught:
        encode_properties(properties)

    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


# ------------------------------------------------------------------ once more
def test_a_replayed_message_is_the_same_but_for_its_history() -> None:
    mine = fields(b"d" + struct.pack(">d", 2.75), MILLISECONDS, b"f" + struct.pack(">f", math.inf), b"u\x00\x01")
    history = pack_table({"CC": ["other"], "x-first-death-queue": "work"})[4:]
    old = Properties(headers(history + mine + DEATH, b"m1"))

    new = Properties(renewed_properties(old, ("x-death", "x-first-death-queue", "CC")))

    assert new.part("headers") == struct.pack(">I", len(mine)) + mine
    assert (new.message_id, new.delivery_mode) == ("m1", 2)


def test_a_replayed_message_keeps_its_properties_and_has_an_id() -> None:
    new = Properties(renewed_properties(Properties(encode_properties({**ALL, "message_id": None})), ()))

    dropped = {"delivery_mode", "expiration", "user_id", "cluster_id", "message_id"}
    assert all((getattr(new, name) == ALL[name]) is (name not in dropped) for name in ALL if name != "delivery_mode")
    assert (len(new.message_id), new.delivery_mode) == (32, 2)
