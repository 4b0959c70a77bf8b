import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conquiet.rabbit.decode import Unreadable, decode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.spec("MW-002.5")
@settings(deadline=None)
@given(st.dictionaries(st.text(), JSON))
def test_an_object_comes_back_as_it_was(value: dict[str, Any]) -> None:
    assert decode(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.spec("MW-002.5")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "body is not JSON"),
        (b"{", "body is not JSON"),
        (b"{} {}", "body is not JSON"),
        (b'{"a": NaN}', "body is not JSON"),
        (b'{"a": Infinity}', "body is not JSON"),
        (b'{"a": 1e999}', "body is not JSON"),
        (b'{"a": "\\ud800"}', "body is not JSON"),
        (b"\xef\xbb\xbf{}", "body is not JSON"),
        ('{"a": 1}'.encode("utf-16"), "body is not JSON"),
        (b'{"a": "\xff"}', "body is not UTF-8"),
        (b"[1]", "body is not a JSON object"),
        (b'"text"', "body is not a JSON object"),
        (b"null", "body is not a JSON object"),
        (b"1", "body is not a JSON object"),
        (b"[" * 100_000, "body is nested too deeply"),
        (b'{"a":' * 100_000, "body is nested too deeply"),
    ],
)
def test_everything_else_is_unreadable_for_a_constant_reason(body: bytes, reason: str) -> None:
    assert decode(body) == Unreadable(reason)


def test_a_body_above_the_cap_is_not_even_parsed() -> None:
    assert decode(b"[" * 101, max_bytes=100) == Unreadable("body larger than max_body_bytes")
    assert decode(b'{"a": 1}', max_bytes=8) == {"a": 1}


@settings(deadline=None)
@given(st.binary())
def test_no_bytes_ever_raise(body: bytes) -> None:
    assert isinstance(decode(body), dict | Unreadable)
