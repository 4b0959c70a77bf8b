"""Words that only this project used are not used again. scripts/plain_words.py has the list."""

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


PHRASES_IN_TESTS = 115
"""Mannered phrases of all kinds in the prose of tests, scripts, benchmarks and examples. It is never raised."""


@pytest.fixture(scope="module")
def phrases() -> dict[str, list[str]]:
    """Return the places of all phrases in the repository, by kind."""
    places: dict[str, list[str]] = {kind: [] for kind in plain_words.PHRASES}
    for hit in plain_words.search_phrases(plain_words.prose())[0]:
        places[hit.word].append(f"{hit.path}:{hit.line}: {hit.text}")
    return places


@pytest.mark.xdist_group("phrases")  # they share the search, which takes seconds
@pytest.mark.parametrize("kind", plain_words.PHRASES)
def test_mannered_phrases_do_not_grow(phrases: dict[str, list[str]], kind: str) -> None:
    assert len(phrases[kind]) <= plain_words.PHRASES[kind].limit, "\n".join(phrases[kind])


def test_mannered_phrases_in_tests_and_scripts_do_not_grow() -> None:
    hits, _ = plain_words.search_phrases(plain_words.prose_below("tests", "scripts", "benchmarks", "examples"))

    kinds = Counter(hit.word for hit in hits)
    assert len(hits) <= PHRASES_IN_TESTS, f"--phrases --show all --below tests prints them: {kinds.most_common()}"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Counts. What is left stays the caller's.", ["headless what", "the caller's"]),
        ("Ask the server whose lock it is, at once.", ["ask, answer", "whose", "at once"]),
        ("Wait so many seconds for that of the other.", ["so many", "one that, that of"]),
        ("Whether it is no message, also if it is away.", ["begins with what", "is no", "also if", "is away"]),
        ("Accepted are the others. Not a retry but a new entry.", ["inverted", "not, but"]),
        ("Who publishes goes on in vain.", ["begins with what", "impersonal", "goes on", "nevertheless"]),
        (
            "That is why it was taken for a duplicate, and comes back.",
            ["begins with what", "is what", "taken for", "comes again"],
        ),
        (
            "The lock was not had; nothing but a probe ran, twice in a row.",
            ["is had, is let", "nothing but", "in a row"],
        ),
        ("A slot in migration is redirected by ASK, after ASKING.", []),
        ("Decide what is left, so long as that is possible.", []),
        ("The answer is in the table: what is a unit of work?", ["ask, answer"]),
    ],
)
def test_phrases_are_found_in_prose(text: str, kinds: list[str]) -> None:
    found = {kind for kind, _ in plain_words.phrases_in(text, is_code=True)}

    assert sorted(found) == sorted(kinds)


def test_a_paragraph_of_a_document_may_begin_with_where() -> None:
    text = "Where no group exists, nothing is read."

    assert [kind for kind, _ in plain_words.phrases_in(text, is_code=True)] == ["begins with what"]
    assert list(plain_words.phrases_in(text, is_code=False)) == []


def test_prose_is_docstrings_comments_and_paragraphs() -> None:
    code = '"""Do it.\n\nTwice.\n"""\nX = 1  # one\n# two\n# three\nY = "not prose"\n"""About Y."""\n'
    document = "# Title\n\nOne\ntwo.\n\n```python\ncode\n```\n"

    assert [text for _, text in plain_words.prose_of_code(code)] == ["Do it. Twice.", "About Y.", "one two three"]
    assert list(plain_words.prose_of_document(document)) == [(1, "# Title"), (3, "One two.")]
