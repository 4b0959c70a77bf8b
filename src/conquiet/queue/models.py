"""Messages, batches of them, and the backlog.

See docs/decisions/0009.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from conquiet.errors import MalformedMessageError


class _Received:
    """Facts of a message in addition to the seed's fields.

    Attributes:
        payload_bytes: The encoded payload, the same at each delivery: an inbox compares them. Not set in a message
            that the application created. Not part of ``repr()`` or of a comparison.
    """

    __slots__ = ("payload_bytes",)

    payload_bytes: bytes

    def with_bytes(self, payload_bytes: bytes) -> Self:
        """Set ``payload_bytes`` and return the message."""
        self.payload_bytes = payload_bytes
        return self


# Not frozen: a frozen dataclass takes twice as long to build, and one is built for every message.
@dataclass(slots=True)
class QueueMessage(_Received):
    """One delivery of one stream entry. SPEC(003 §6.1).

    Attributes:
        stream: Key of the stream it was read from.
        group: Consumer group it is pending in until it is acknowledged.
        id: Entry id, ``milliseconds-sequence``.
        payload: The decoded JSON object. Not part of ``repr()``: it may be personal data.
        delivery_count: How often the server has delivered the entry, this time included.
    """

    stream: str
    group: str
    id: str
    payload: dict[str, Any] = field(repr=False)
    delivery_count: int = 1


class MessageBatch(list[QueueMessage]):
    """The messages of one reply, with its malformed and deleted entries.

    An empty batch means that there was no entry. A reply in which every entry was malformed raises
    ``MalformedMessageError`` instead.

    Attributes:
        malformed: One error for each entry that breaks the format; they are pending, like the messages.
        deleted: Ids that were pending although their entry was deleted from the stream. They are not pending any more.
        last_id: Highest id of the reply, malformed and deleted entries included; None if the reply was empty.
    """

    __slots__ = ("deleted", "last_id", "malformed")

    def __init__(
        self,
        messages: Iterable[QueueMessage] = (),
        *,
        malformed: tuple[MalformedMessageError, ...] = (),
        deleted: tuple[str, ...] = (),
        last_id: str | None = None,
    ) -> None:
        super().__init__(messages)
        self.malformed = malformed
        self.deleted = deleted
        self.last_id = last_id


@dataclass(frozen=True, slots=True)
class Backlog:
    """The backlog of a group at one moment. SPEC(000 §12.2): best effort, changes nothing.

    Attributes:
        length: Entries in the stream, handled ones included (acknowledging does not remove them).
        pending: Entries delivered and not acknowledged.
        lag: Entries not yet delivered to the group; None where the server does not know it (before Redis 7.0, or after
            entries in the middle were deleted). Too high after undelivered entries were trimmed: the server still
            counts them.
        oldest_age_s: Age of the oldest entry that is pending or not yet delivered, by the time in its
            id and the server's clock; None if there is no such entry.
    """

    length: int
    pending: int
    lag: int | None
    oldest_age_s: float | None
