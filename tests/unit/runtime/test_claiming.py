"""Deliveries that are counted when an entry is claimed, and the reply of the script."""

import pytest

from conquiet.core.json_codec import TOO_LARGE
from conquiet.queue.codec import NOT_ONE_FIELD, WRONG_FIELD
from conquiet.runtime.claiming import suspect_from, taken_over


@pytest.mark.parametrize(("max_deliveries", "counted"), [(20, 10), (3, 1), (2, 1), (None, 0)])
def test_half_of_the_deliveries_are_counted_at_the_claim(max_deliveries: int | None, counted: int) -> None:
    """Above that an entry is a suspect and is counted when its handler is called. 0: there is no cap."""
    assert suspect_from(max_deliveries) == counted


def test_each_claimed_entry_keeps_its_count_and_its_content() -> None:
    reply = [b"9-0", [[b"7-0", [b"data", b"{}"], 2, 1], [b"8-0", [b"data", b"[]"], 11, 0]], [b"6-0"]]

    found = taken_over(reply)

    assert (found.cursor, found.deleted) == ("9-0", ["6-0"])
    assert [(one.id, one.fields, one.deliveries, one.charged) for one in found.entries] == [
        ("7-0", [b"data", b"{}"], 2, True),
        ("8-0", [b"data", b"[]"], 11, False),
    ]


@pytest.mark.parametrize(("number", "reason"), [(0, ""), (1, NOT_ONE_FIELD), (2, WRONG_FIELD), (3, TOO_LARGE)])
def test_an_entry_that_is_no_message_comes_without_its_content(number: int, reason: str) -> None:
    """The reason is empty for an entry that the caller has named as malformed."""
    (entry,) = taken_over([b"0-0", [[b"7-0", number, 1, 1]], []]).entries

    assert (entry.fields, entry.reason) == (None, reason)
