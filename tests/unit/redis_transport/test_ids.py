"""The order of entry ids."""

from conquiet.redis_transport.ids import milliseconds_of, parse_id


def test_ids_are_ordered_by_number_and_not_as_text() -> None:
    assert parse_id("9-1") < parse_id("10-0") < parse_id("10-2") < parse_id("10-10")
    assert parse_id("10") == parse_id("10-0")


def test_the_first_part_of_an_id_is_a_time() -> None:
    assert milliseconds_of("1763244000000-7") == 1_763_244_000_000
