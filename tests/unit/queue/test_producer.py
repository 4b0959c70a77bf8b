"""Scripts of the producer, and their keys."""

import pytest
from redis.crc import key_slot

from conquiet.queue.producer import ENQUEUE_ONCE, mark_key
from conquiet.redis_transport.stream_scripts import ENQUEUE_MANY


@pytest.mark.parametrize("stream", ["orders", "{shop}:orders", "a{b}c", "x{}y", "{", "a:b"])
def test_the_mark_of_an_idempotency_key_lies_in_its_streams_slot(stream: str) -> None:
    mark = mark_key(stream, "jane@example.org")

    assert "jane" not in mark
    if stream != "x{}y":  # an empty tag hashes the whole key: no other key can share its slot on purpose
        assert key_slot(mark.encode()) == key_slot(stream.encode())


@pytest.mark.spec("RS-001.8", "RS-003.4")
@pytest.mark.parametrize("script", [ENQUEUE_ONCE, ENQUEUE_MANY])
def test_a_script_adds_entries_as_the_specification_writes_them(script: str) -> None:
    """An option of XADD (MAXLEN, MINID) would remove entries without a separate command."""
    added = [line.partition("'XADD'")[2] for line in script.splitlines() if "XADD" in line]

    assert len(added) == 1
    assert added[0].startswith(", KEYS[1], '*', 'data', ARGV[")
    assert {"XDEL", "XTRIM"}.isdisjoint(script.replace("'", " ").split())
