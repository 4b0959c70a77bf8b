"""Choose the partition of each message, for emitters with and without asyncio. No I/O.

A message with a key is first sent to the current partition of the key. It is added there, or the partition redirects it
after a growth: then it is sent to the key's new partition, and later messages of the key are sent there directly.

See docs/decisions/0051.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from conquiet.core.seen_ids import SeenIds
from conquiet.processor.emit_requests import EmitPlanner, Emitted, NewMessage, ScriptCall, new_states, parse_reply
from conquiet.processor.jobs import NewState
from conquiet.processor.partitions import Layout, partition_name, partition_of

_LAYOUT_AGE_S = 5.0
_PER_MESSAGE = 4
"""Arguments of ``emit.lua`` for each message."""


class Placed(NamedTuple):
    """A message to be sent: its position in the call, and the partition that redirected its key."""

    place: int
    message: NewMessage
    sent_by: int | None = None


class PartitionRouter:
    """Chooses partitions for one emitter, and remembers keys that have moved.

    Attributes:
        lock: Hold it during a call, if threads share the router.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
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


class RoutedMessages:
    """The messages of one ``emit_many`` call, until each is accepted by a partition.

    Args:
        router: Chooses the partitions. Threads may share it.
        plans: Builds the script calls.
        stream: Name of the partitioned stream.
        messages: The messages.
    """

    def __init__(
        self, router: PartitionRouter, plans: EmitPlanner, stream: str, messages: Iterable[NewMessage]
    ) -> None:
        self._router = router
        self._plans = plans
        self._stream = stream
        self.waiting = [Placed(place, message) for place, message in enumerate(messages)]
        self._emitted: dict[int, Emitted] = {}

    def steps(self, layout: Layout) -> Iterator[tuple[ScriptCall, list[Placed], int]]:
        """Return the steps for all waiting messages: script call, its messages, partition. Pass replies to ``accept``.

        Afterwards the redirected messages are waiting: their keys belong to another partition now.
        """
        with self._router.lock:
            chosen = self._router.by_partition(self.waiting, layout)
        self.waiting = []
        for index, messages in chosen.items():
            places = iter(messages)
            name = partition_name(self._stream, index)
            for step in map(asking, self._plans.steps([placed.message for placed in messages], name)):
                yield step, [next(places) for _ in step.messages], index
        with self._router.lock:
            for placed in self.waiting:
                self._router.note_sent_on(placed.message.key or "", placed.sent_by, layout)

    def accept(self, step: ScriptCall, reply: Sequence[Any], here: Sequence[Placed], index: int) -> list[NewState]:
        """Read the reply of a partition. Return the job states of the accepted messages."""
        self.waiting += [
            placed._replace(sent_by=index) for placed, answer in zip(here, reply, strict=True) if answer[:1] == b">"
        ]
        kept = [number for number, answer in enumerate(reply) if answer[:1] != b">"]
        taken = step._replace(messages=[step.messages[number] for number in kept])
        sent = parse_reply(taken, [reply[number] for number in kept])
        self._emitted |= zip([here[number].place for number in kept], sent, strict=True)
        return new_states(taken, sent)

    def emitted(self) -> list[Emitted]:
        """Return the results in the order of the messages."""
        return [self._emitted[place] for place in sorted(self._emitted)]


def asking(step: ScriptCall) -> ScriptCall:
    """Return the step with the condition that messages are added only if their key has not moved."""
    if step.script.name != "emit":
        return step
    args = list(step.args)
    for place in range(1, len(args), _PER_MESSAGE):
        args[place] = args[place] or "?"
    return step._replace(args=args)
