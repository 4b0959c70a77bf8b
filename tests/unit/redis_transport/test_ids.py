"""The form and the order of entry ids."""

import pytest

from conquiet.redis_transport.ids import is_entry_id, milliseconds_of, next_id, parse_id


def test_ids_are_ordered_by_number_and_not_as_text() -> None:
    assert parse_id("9-1") < parse_id("10-0") < parse_id("10-2") < parse_id("10-10")
    assert parse_id("10") == parse_id("10-0")


def test_the_first_part_of_an_id_is_a_time() -> None:
    assert milliseconds_of("1763244000000-7") == 1_763_244_000_000


def test_the_next_id_is_the_smallest_behind_it() -> None:
    assert next_id("17-4") == "17-5"
    assert next_id("17") == "17-1"


@pytest.mark.parametrize(
    ("text", "is_id"),
    [("1763244000000-7", True), ("0-0", True), ("17", False), ("17-", False), ("a-1", False), ("1-2-3", False),
     ("\u0661-\u0661", False), ("1-1\n", False), ("", False)],
)  # fmt: skip
def test_only_two_numbers_with_a_dash_are_an_entry_id(text: str, is_id: bool) -> None:  # noqa: FBT001
    assert is_entry_id(text) is is_id
