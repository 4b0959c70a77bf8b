"""Choose the partition of each message, for emitters with and without asyncio. No I/O.

See docs/decisions/0051.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from conquiet.core.seen_ids import SeenIds
from conquiet.processor.emit_requests import Emitted, NewMessage, ScriptCall, parse_reply
from conquiet.processor.partitions import Layout, partition_of

_LAYOUT_AGE_S = 5.0
_PER_MESSAGE = 4
"""Arguments of ``emit.lua`` for each message."""


class Placed(NamedTuple):
    """A message to be sent: its position in the call, and the partition that redirected its key."""

    place: int
    message: NewMessage
    sent_by: int | None = None


class Answers(NamedTuple):
    """The reply of a partition to one step.

    Attributes:
        step: The step, reduced to the accepted messages.
        sent: Their results.
        places: Their positions in the call.
        moved: Redirected messages: their keys now belong to another partition.
    """

    step: ScriptCall
    sent: list[Emitted]
    places: list[int]
    moved: list[Placed]


class PartitionRouter:
    """Chooses partitions for one emitter, and remembers keys that have moved."""

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._read_at = 0.0
        self._next = 0
        self._arrived = SeenIds()

    @property
    def layout(self) -> Layout | None:
        """The last known layout. None if it must be read again."""
        is_old = time.monotonic() - self._read_at > _LAYOUT_AGE_S
        return None if is_old else self._layout

    @layout.setter
    def layout(self, layout: Layout) -> None:
        self._layout, self._read_at = layout, time.monotonic()

    def by_partition(self, messages: Iterable[Placed], layout: Layout) -> dict[int, list[Placed]]:
        """Return the messages by partition, in order."""
        found: dict[int, list[Placed]] = {}
        for placed in messages:
            index = self.choose(placed.message.key, placed.message.id, placed.sent_by, layout)
            found.setdefault(index, []).append(placed)
        return found

    def choose(self, key: str | None, message_id: str | None, sent_by: int | None, layout: Layout) -> int:
        """Return the first partition to try, or the next one after a partition that redirected the key."""
        if key is None:
            # An id always maps to the same partition, so that a duplicate is detected there.
            self._next += 1
            return self._next % layout.count if message_id is None else partition_of(message_id, layout.count)
        if self._arrived.is_known(str(layout.count), key):
            return partition_of(key, layout.count)
        return layout.place_after(key, sent_by)

    def note_sent_on(self, key: str, sent_by: int | None, layout: Layout) -> None:
        """Record that a partition redirected a key. The layout is then read again."""
        self._layout = None
        if layout.previous is not None and partition_of(key, layout.previous) == sent_by:
            # The key has no message in its old partition and never gets one there again.
            self._arrived.add(str(layout.count), key)


def asking(step: ScriptCall) -> ScriptCall:
    """Return the step with the condition that messages are added only if their key has not moved."""
    if step.script.name != "emit":
        return step
    args = list(step.args)
    for place in range(1, len(args), _PER_MESSAGE):
        args[place] = args[place] or "?"
    return step._replace(args=args)


def read_answers(step: ScriptCall, reply: Sequence[Any], here: Sequence[Placed], index: int) -> Answers:
    """Split the reply of a partition into accepted and redirected messages."""
    kept = [number for number, answer in enumerate(reply) if answer[:1] != b">"]
    moved = [placed._replace(sent_by=index) for placed, answer in zip(here, reply, strict=True) if answer[:1] == b">"]
    taken = step._replace(messages=[step.messages[number] for number in kept])
    sent = parse_reply(taken, [reply[number] for number in kept])
    return Answers(taken, sent, [here[number].place for number in kept], moved)
