"""The format of a stream entry."""

from typing import Any

import pytest

from conquiet.core import json_codec
from conquiet.core.json_codec import CodecError
from conquiet.queue import codec
from conquiet.queue.codec import decode_fields

MIB = 1_048_576


@pytest.mark.spec("RS-003.1", "RS-003.2", "RS-003.5")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([], codec.NOT_ONE_FIELD),
        ([b"data", b"{}", b"more", b"x"], codec.NOT_ONE_FIELD),
        ([b"Data", b"{}"], codec.WRONG_FIELD),
        ([b"data", b"1"], json_codec.NOT_AN_OBJECT),
        ([b"data", b"null"], json_codec.NOT_AN_OBJECT),
        ([b"data", b""], json_codec.NOT_JSON),
        ([b"data", b'{"a":NaN}'], json_codec.NOT_JSON),
        ([b"data", b'{"a":-Infinity}'], json_codec.NOT_JSON),
        ([b"data", b'{"a":1e999}'], json_codec.OUT_OF_RANGE),
        ([b"data", b'{"a":"\xff"}'], json_codec.NOT_UTF8),
        ([b"data", b'{"a":"\\ud800"}'], json_codec.NOT_JSON),
        ([b"data", b'{"a":"\\udc00 tail that is long enough"}'], json_codec.NOT_JSON),
        ([b"data", b'\xef\xbb\xbf{"a":1}'], json_codec.NOT_JSON),
        ([b"data", '{"a":1}'.encode("utf-16")], json_codec.NOT_JSON),
        ([b"data", b'{"a":1} {"b":2}'], json_codec.NOT_JSON),
        ([b"data", b"{'a':1}"], json_codec.NOT_JSON),
        ([b"data", b'{"a":' * 100_000], json_codec.TOO_DEEP),
        ([b"data", b'{"a":"%b"}' % (b"x" * MIB)], json_codec.TOO_LARGE),
    ],
)
def test_an_entry_that_breaks_the_format_is_refused_with_a_reason(fields: Any, reason: str) -> None:
    with pytest.raises(CodecError) as caught:
        decode_fields(fields, max_bytes=MIB)

    assert caught.value.reason == reason
    assert caught.value.__context__ is None


def test_an_entry_of_one_data_field_is_its_payload() -> None:
    assert decode_fields([b"data", b'{"a":1}'], max_bytes=MIB) == {"a": 1}
