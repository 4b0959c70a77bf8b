"""The words that only this project used do not come back. scripts/plain_words.py has the list."""

from collections import Counter

import plain_words
import pytest

LIMIT = 2
"""Occurrences in the whole repository. Lower it when the number falls; it is never raised."""


def test_the_dialect_does_not_grow() -> None:
    hits = plain_words.search()

    places = Counter(plain_words.area_of(hit.path) for hit in hits)
    assert len(hits) <= LIMIT, f"python scripts/plain_words.py --show all prints them: {places.most_common(10)}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the room tells nobody", ["nobody", "told", "room"]),
        ("def bury(letter): ...", ["bury", "letters"]),
        ("was handed it back", ["hand back"]),
        ("could not be had", ["had for acquired"]),
        ("a dead letter, dead_letters, DeadLetters, dead-letter exchange", []),
        ("letters and digits", []),
        ("bedrooms and mushrooms recommend amends", []),
        ("run_forever", []),
    ],
)
def test_the_search_finds_the_words_and_leaves_legitimate_uses(text: str, found: list[str]) -> None:
    assert sorted(plain_words.hits_in(text)) == sorted(found)
