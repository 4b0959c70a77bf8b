"""What the queue hands out: a message, a batch of them, a picture of the backlog."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from conquiet.errors import MalformedMessageError


# Not frozen: a frozen dataclass takes twice as long to build, and one is built for every message.
@dataclass(slots=True)
class QueueMessage:
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
    """The messages of one reply, and what else the reply held.

    An empty batch means that no message was there. A reply in which every entry was malformed is
    not an empty batch but a ``MalformedMessageError``.

    Attributes:
        malformed: One error for each entry that breaks the format; they are pending, like the messages.
        deleted: Ids that were pending although their entry had been deleted from the stream. They are
            not pending any more, and there is nothing left of them to deliver.
        last_id: Highest id of the reply, whatever became of it; None if the reply was empty.
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
    """How far a group is behind, as of one moment. SPEC(000 §12.2): best effort, nothing is changed.

    Attributes:
        length: Entries in the stream, handled ones included (acknowledging does not remove them).
        pending: Entries delivered and not acknowledged.
        lag: Entries not yet delivered to the group; None where the server cannot tell (before Redis
            7.0, or after entries in the middle were deleted). Too high after undelivered entries were
            trimmed: the server goes on counting them.
        oldest_age_s: Age of the oldest entry that is pending or not yet delivered, by the time in its
            id and the server's clock; None if there is no such entry.
    """

    length: int
    pending: int
    lag: int | None
    oldest_age_s: float | None
