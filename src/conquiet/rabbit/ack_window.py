"""Decide which acknowledgements may be sent together. Pure.

``basic.ack(multiple=True)`` up to tag T settles *every* unsettled delivery up to T on its channel, finished or not. So
T must be below the lowest tag that is still open.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Acks:
    """Acknowledgements to send now, in this order.

    Attributes:
        up_to: Send a multiple-ack up to this tag; None if no delivery below the lowest open tag is finished.
        run: Number of deliveries that ``up_to`` settles.
        singles: Tags to acknowledge one by one, because a lower tag is still open.
    """

    up_to: int | None
    run: int
    singles: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of deliveries that are settled."""
        return self.run + len(self.singles)


_NOTHING = Acks(None, 0, ())


class AckWindow:
    """The unsettled deliveries of one channel. Their tags rise in the order of delivery."""

    __slots__ = ("_finished", "_open")

    def __init__(self) -> None:
        # A dict keeps the order of arrival, so that its first key is the lowest open tag.
        self._open: dict[int, None] = {}
        self._finished: list[int] = []

    def arrived(self, tags: Iterable[int]) -> None:
        """Add open deliveries."""
        self._open.update(dict.fromkeys(tags))

    def finished(self, tag: int) -> int:
        """Mark a delivery for acknowledgement. Return the number of marked deliveries."""
        del self._open[tag]
        self._finished.append(tag)
        return len(self._finished)

    def settled(self, tag: int) -> None:
        """Remove a delivery that was settled in another way, such as by a reject."""
        del self._open[tag]

    @property
    def open_count(self) -> int:
        """Number of deliveries that are neither finished nor settled."""
        return len(self._open)

    def take(self) -> Acks:
        """Return the acknowledgements of all finished deliveries, and remove these deliveries."""
        finished = self._finished
        if not finished:
            return _NOTHING
        self._finished = []
        if not self._open:
            return Acks(max(finished), len(finished), ())
        lowest_open = next(iter(self._open))
        run = [tag for tag in finished if tag < lowest_open]
        singles = tuple(sorted(tag for tag in finished if tag > lowest_open))
        return Acks(max(run) if run else None, len(run), singles)
