"""Headers of a message that the consumer moves to ``<queue>.dead``."""

from datetime import UTC, datetime

from conquiet.rabbit.dead_letter_headers import with_move_record
from conquiet.rabbit.properties import Properties, encode_properties
from conquiet.rabbit.syncer import Refused


def test_a_moved_message_loses_copies_and_old_counts() -> None:
    """``CC`` and ``BCC`` would have the broker send copies to other queues, where they would be processed."""
    headers = {"own": 7, "CC": ["work"], "BCC": ["audit"], "x-delivery-count": 3, "x-acquired-count": 4}
    raw = encode_properties({"message_id": "m-1", "headers": headers})

    moved = Properties(with_move_record(raw, "work", Refused(), datetime.now(UTC)))

    assert isinstance(moved.headers, dict)
    assert moved.headers["own"] == 7
    assert not {"CC", "BCC", "x-delivery-count", "x-acquired-count"} & moved.headers.keys()
