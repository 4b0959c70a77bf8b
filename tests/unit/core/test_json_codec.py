"""The JSON codec: its output, the input it accepts, and refusals that never show a value."""

import enum
import json
from collections import OrderedDict, defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.core import json_codec as codec
from conquiet.core.json_codec import CodecError, canonical, decode_payload, encode_json, encode_payload

MIB = 1_048_576

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)
payloads = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), json_values)


@pytest.mark.spec("RS-003.3", "RS-003.6", "CQ-006.3", "CQ-006.4")
@given(payloads)
def test_encoded_data_is_decoded_unchanged(payload: dict[str, Any]) -> None:
    data = encode_payload(payload, max_bytes=MIB)

    assert decode_payload(data, max_bytes=MIB) == payload
    assert json.loads(data.decode("utf-8")) == payload  # and by all other users


@given(payloads)
def test_json_of_the_standard_library_is_decoded(payload: dict[str, Any]) -> None:
    assert decode_payload(json.dumps(payload).encode(), max_bytes=MIB) == payload


@given(st.binary(max_size=200))
def test_any_bytes_give_an_object_or_a_reason(data: bytes) -> None:
    try:
        outcome: object = decode_payload(data, max_bytes=100)
    except CodecError as error:
        outcome = error.reason

    assert isinstance(outcome, dict) or outcome in vars(codec).values()


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Euro(float):
    pass


@pytest.mark.parametrize(
    ("given_", "read"),
    [
        ({"c": Colour.RED}, {"c": "red"}),
        ({"l": Level.HIGH}, {"l": 3}),
        ({"e": Euro(1.5)}, {"e": 1.5}),
        ({Colour.RED: 1}, {"red": 1}),
        (OrderedDict(a=1), {"a": 1}),
        ({"d": defaultdict(list, a=[1])}, {"d": {"a": [1]}}),
        ({"t": (1, 2)}, {"t": [1, 2]}),
        ({"big": 10**40, "neg": -(2**63) - 1}, {"big": 10**40, "neg": -(2**63) - 1}),
        ({"text": "\x00\u2028😀"}, {"text": "\x00\u2028😀"}),
        ({}, {}),
    ],
)
def test_subclasses_of_json_types_are_written_as_their_base(given_: dict[str, Any], read: dict[str, Any]) -> None:
    assert decode_payload(encode_payload(given_, max_bytes=MIB), max_bytes=MIB) == read


def nested(depth: int) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    for _ in range(depth - 1):
        payload = {"a": payload}
    return payload


def endless() -> dict[str, Any]:
    payload: dict[str, Any] = {}
    payload["self"] = [payload]
    return payload


@pytest.mark.spec("RS-003.6", "RS-003.7")
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"x": b"secret"}, codec.NOT_JSON_TYPE),
        ({"x": [bytearray(b"secret")]}, codec.NOT_JSON_TYPE),
        ({"x": {"y": memoryview(b"secret")}}, codec.NOT_JSON_TYPE),
        ({"x": datetime.now(UTC)}, codec.NOT_JSON_TYPE),
        ({"x": Decimal("1.5")}, codec.NOT_JSON_TYPE),
        ({"x": {"secret"}}, codec.NOT_JSON_TYPE),
        ({"x": [object()]}, codec.NOT_JSON_TYPE),
        ({"x": 1j}, codec.NOT_JSON_TYPE),
        ({"x": float("nan")}, codec.NOT_FINITE),
        ({"x": [float("-inf")]}, codec.NOT_FINITE),
        ({"x": Euro("inf")}, codec.NOT_FINITE),
        ({1: "x"}, codec.KEY_NOT_TEXT),
        ({"x": {None: 1}}, codec.KEY_NOT_TEXT),
        ({"x": "\ud800secret"}, codec.LONE_SURROGATE),
        ({"\ud800secret": 1}, codec.LONE_SURROGATE),
        ({"x": Colour.RED, "y": "\ud800"}, codec.LONE_SURROGATE),
        ({"x": 10**5000}, codec.OUT_OF_RANGE),
        (nested(101), codec.TOO_DEEP),
        (endless(), codec.TOO_DEEP),
        ({"x": "s" * MIB}, codec.TOO_LARGE),
        (["secret"], codec.NOT_AN_OBJECT),
        ("secret", codec.NOT_AN_OBJECT),
        (None, codec.NOT_AN_OBJECT),
    ],
)
def test_a_value_outside_json_is_refused_with_a_reason_and_no_content(payload: Any, reason: str) -> None:
    with pytest.raises(CodecError) as caught:
        encode_payload(payload, max_bytes=MIB)

    assert caught.value.reason == reason == str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"a": 1, "order": {"items": [1, {"price": float("nan")}]}}, "order.items[1].price"),
        ({"x": [[b"secret"]]}, "x[0][0]"),
        ({"x": ({"secret"},)}, "x[0]"),
        ({1: "secret"}, "its top level"),
        ({"x": [{"y": {None: "secret"}}]}, "x[0].y"),
        ({"ok": "fine", "x": ["\ud800secret"]}, "x[0]"),
        ({"x": {"\ud800": "secret"}}, "x"),
        ({"fine": 10**40, "x": [10**5000]}, "x[0]"),
        ({"x": "secret" * MIB}, ""),
        (["secret"], ""),
        ({"line\nbreak": b"secret"}, "line\\nbreak"),
    ],
)
def test_the_refused_value_is_named_by_its_path_and_never_shown(payload: Any, path: str) -> None:
    with pytest.raises(CodecError) as caught:
        encode_payload(payload, max_bytes=MIB)

    assert caught.value.path == path
    assert "secret" not in caught.value.explanation
    assert (path in caught.value.explanation) or not path


@pytest.mark.parametrize("payload", [nested(101), endless()])
def test_a_value_nested_too_deeply_is_named_by_its_first_keys(payload: Any) -> None:
    with pytest.raises(CodecError) as caught:
        encode_payload(payload, max_bytes=MIB)

    assert caught.value.path.startswith(("a.a.a", "self[0].self"))
    assert len(caught.value.path) < 130


def test_the_deepest_nesting_that_is_written_is_read() -> None:
    payload = nested(codec.MAX_DEPTH)

    assert decode_payload(encode_payload(payload, max_bytes=MIB), max_bytes=MIB) == payload


def test_the_size_is_checked_before_the_content() -> None:
    with pytest.raises(CodecError, match="max_payload_bytes"):
        decode_payload(b'{"a":' * 100, max_bytes=10)


def test_equal_payloads_have_one_canonical_form() -> None:
    assert canonical({"a": 1, "b": [{"y": 1, "x": 2}]}) == canonical({"b": [{"x": 2, "y": 1}], "a": 1})
    assert canonical({"a": 1}) != canonical({"a": "1"})


def test_a_payload_of_exactly_the_largest_size_is_written_and_read() -> None:
    payload = {"a": "x" * 20}
    size = len(json.dumps(payload, separators=(",", ":")))

    data = encode_payload(payload, max_bytes=size)

    assert decode_payload(data, max_bytes=size) == payload
    for refused in (
        lambda: encode_payload(payload, max_bytes=size - 1),
        lambda: decode_payload(data, max_bytes=size - 1),
    ):
        with pytest.raises(CodecError) as caught:
            refused()
        assert caught.value.reason == codec.TOO_LARGE


@given(json_values)
def test_any_json_value_can_be_written(value: Any) -> None:
    assert json.loads(encode_json(value)) == value


@pytest.mark.parametrize("value", [float("nan"), b"secret", "\ud800secret", [float("inf")], {1: 2}])
def test_a_value_is_refused_at_the_top_level_as_it_is_inside(value: Any) -> None:
    with pytest.raises(CodecError) as caught:
        encode_json(value)

    assert "secret" not in caught.value.explanation
    assert caught.value.__context__ is None


def test_tuples_become_lists() -> None:
    assert decode_payload(encode_payload({"a": (1, (2,))}, max_bytes=MIB), max_bytes=MIB) == {"a": [1, [2]]}
