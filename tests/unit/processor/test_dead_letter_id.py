from urllib.parse import quote

import pytest

from conquiet.errors import ConfigurationError
from conquiet.processor.dead_letter_id import dead_id_of, is_dead_id, parse_dead_id
from conquiet.processor.partitions import MOST_PARTITIONS


@pytest.mark.parametrize(
    ("dead_id", "parts"),
    [
        ("1763244000000-0", (1763244000000, 0, 0)),
        ("1763244000000-12.3", (1763244000000, 12, 3)),
        (f"5-1.{MOST_PARTITIONS - 1}", (5, 1, 1023)),
    ],
)
def test_an_id_is_made_of_its_parts(dead_id: str, parts: tuple[int, int, int]) -> None:
    found = parse_dead_id(dead_id)

    assert found == parts
    assert dead_id_of(found.entry_id, found.partition) == dead_id
    assert is_dead_id(dead_id)
    assert quote(dead_id, safe="") == dead_id, "it stands in URLs as it is"


@pytest.mark.parametrize(
    "value", ["", "5", "5-", "5-0.", "5-0.0", "5-0.01", "5-0.12345", "5-0.1.2", "5-0-1", "(5-0", "5-0\n", "-", None, 5]
)
def test_anything_else_is_refused(value: object) -> None:
    assert not is_dead_id(value)
    with pytest.raises(ConfigurationError, match=r"looks like 1763244000000-0, or 1763244000000-0\.3 in partition 3"):
        parse_dead_id(value)


def test_ids_sort_by_age_and_then_by_partition() -> None:
    ids = ["10-0.1", "9-0.10", "9-10.1", "9-2", "10-0", "9-0.2", "9-0"]

    assert sorted(ids, key=parse_dead_id) == ["9-0", "9-0.2", "9-0.10", "9-2", "9-10.1", "10-0", "10-0.1"]


def test_a_page_continues_between_partitions_with_equal_ids() -> None:
    last = parse_dead_id("5-0.1")

    assert [last.start_after(index) for index in range(3)] == ["(5-0", "(5-0", "5-0"]
    assert [last.start_before(index) for index in range(3)] == ["5-0", "(5-0", "(5-0"]
