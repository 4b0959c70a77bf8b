"""Split work into chunks that a server accepts. Pure."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def chunks(items: Iterable[T], size_of: Callable[[T], int], *, max_items: int, max_size: int) -> Iterator[list[T]]:
    """Yield the items in their order, in lists with at most ``max_items`` items and a total size of ``max_size``.

    An item that is larger than ``max_size`` is alone in its list.
    """
    chunk: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if chunk and (len(chunk) == max_items or total + size > max_size):
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += size
    if chunk:
        yield chunk
