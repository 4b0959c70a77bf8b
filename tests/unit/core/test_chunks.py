"""Chunks by number and size."""

from conquiet.core.chunks import chunks


def chunked(*words: str) -> list[list[str]]:
    return list(chunks(words, len, max_items=3, max_size=5))


def test_a_chunk_is_limited_by_number_and_by_size() -> None:
    assert chunked() == []
    assert chunked("a", "b", "c", "d") == [["a", "b", "c"], ["d"]]
    assert chunked("aa", "bbb", "c") == [["aa", "bbb"], ["c"]]


def test_an_item_that_is_too_large_is_alone() -> None:
    assert chunked("a", "toolarge", "b") == [["a"], ["toolarge"], ["b"]]
