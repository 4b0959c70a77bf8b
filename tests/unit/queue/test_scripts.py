"""Keys of the queue's scripts."""

import pytest
from redis.crc import key_slot

from conquiet.queue.scripts import mark_key


@pytest.mark.parametrize("stream", ["orders", "{shop}:orders", "a{b}c", "x{}y", "{", "a:b"])
def test_the_mark_of_an_idempotency_key_lies_in_its_streams_slot(stream: str) -> None:
    mark = mark_key(stream, "jane@example.org")

    assert "jane" not in mark
    if stream != "x{}y":  # an empty tag hashes the whole key: no other key can share its slot on purpose
        assert key_slot(mark.encode()) == key_slot(stream.encode())
