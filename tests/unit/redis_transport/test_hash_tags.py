"""Keys in the slot of their stream."""

import pytest
from redis.crc import key_slot

from conquiet.redis_transport.hash_tags import slot_prefix, slot_prefix_bytes


@pytest.mark.parametrize(
    ("stream", "prefix"),
    [("orders", "{orders}"), ("{eu}orders", "{eu}orders"), ("a{}b", "{a{}b}"), ("}a{", "{}a{}"), ("a{b}c", "a{b}c")],
)
def test_a_key_of_a_stream_begins_with_its_hash_tag(stream: str, prefix: str) -> None:
    """A cluster refuses a script on keys of two slots; Redis hashes what is in the first non-empty braces."""
    assert slot_prefix(stream) == prefix


@pytest.mark.parametrize("stream", ["orders", "{shop}:orders", "a{b}c", "{", "a:b"])
def test_a_key_of_a_stream_is_in_its_slot(stream: str) -> None:
    assert key_slot(f"{slot_prefix(stream)}:delayed".encode()) == key_slot(stream.encode())


def test_a_name_that_is_not_utf_8_keeps_its_bytes() -> None:
    assert slot_prefix_bytes(b"\xff:orders") == b"{\xff:orders}"
