"""Choose the partition of each message, for emitters with and without asyncio. Rules and data; no I/O.

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
    """A message on its way: its place in the call, and the partition that has sent its key on."""

    place: int
    message: NewMessage
    sent_by: int | None = None


class Answers(NamedTuple):
    """What a partition has done with the messages of one step.

    Attributes:
        step: The step with those messages alone that the partition has taken.
        sent: What became of them.
        places: Their places in the call.
        moved: Messages whose keys belong to another partition by now.
    """

    step: ScriptCall
    sent: list[Emitted]
    places: list[int]
    moved: list[Placed]


class PartitionRouter:
    """Chooses partitions for one emitter, and remembers where keys have moved to."""

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._read_at = 0.0
        self._next = 0
        self._arrived = SeenIds()

    @property
    def layout(self) -> Layout | None:
        """The layout that was read last; None if it has to be read again."""
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
        """Return the partition to ask first, or next after one that has sent the key on."""
        if key is None:
            # Whatever has an id has one place: a second one with it is found there.
            self._next += 1
            return self._next % layout.count if message_id is None else partition_of(message_id, layout.count)
        if self._arrived.is_known(str(layout.count), key):
            return partition_of(key, layout.count)
        return layout.place_after(key, sent_by)

    def note_sent_on(self, key: str, sent_by: int | None, layout: Layout) -> None:
        """Remember that a partition has sent a key on, and that the layout has to be read again."""
        self._layout = None
        if layout.previous is not None and partition_of(key, layout.previous) == sent_by:
            # It has no message in the partition before the growth, and never gets one there again.
            self._arrived.add(str(layout.count), key)


def asking(step: ScriptCall) -> ScriptCall:
    """Return the step with messages that are due now only if their key has not moved."""
    if step.script.name != "emit":
        return step
    args = list(step.args)
    for place in range(1, len(args), _PER_MESSAGE):
        args[place] = args[place] or "?"
    return step._replace(args=args)


def read_answers(step: ScriptCall, reply: Sequence[Any], here: Sequence[Placed], index: int) -> Answers:
    """Sort what a partition has answered."""
    kept = [number for number, answer in enumerate(reply) if answer[:1] != b">"]
    moved = [placed._replace(sent_by=index) for placed, answer in zip(here, reply, strict=True) if answer[:1] == b">"]
    taken = step._replace(messages=[step.messages[number] for number in kept])
    sent = parse_reply(taken, [reply[number] for number in kept])
    return Answers(taken, sent, [here[number].place for number in kept], moved)
