"""Emits to the partitions of a stream: by key, or in turn.

A message with a key asks the partition that has had the key so far. It is added there, or the answer is the number of
partitions after a growth: then it goes to the key's new partition, and so do all later ones, without asking.

See docs/decisions/0051.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from conquiet.core.seen_ids import SeenIds
from conquiet.core.signatures import takes_keywords_of
from conquiet.errors import ConfigurationError
from conquiet.processor.emit_requests import EmitPlanner, Emitted, NewMessage, ScriptCall, new_states, parse_reply
from conquiet.processor.emitter import Emitter
from conquiet.processor.jobs import JobRecorder
from conquiet.processor.partition_layout import PartitionLayout
from conquiet.processor.partitions import Layout, partition_name, partition_of
from conquiet.processor.settings import ProcessorSettings
from conquiet.redis_transport.client import AsyncClient

Placed = tuple[int, NewMessage, int | None]
"""Place in the call, message, and the partition that has sent its key on."""

_LAYOUT_AGE_S = 5.0
_PER_MESSAGE = 4
"""Arguments of ``emit.lua`` for each message."""


class PartitionedEmitter:
    """Emits to one partitioned stream.

    Args:
        client: A client without retries, such as ``clone_async`` makes. It stays the caller's.
        stream: The stream's name.
        settings: Window of ids, chunk size, payload limit.
        jobs: Writes job states, if they are kept.
    """

    def __init__(
        self,
        client: AsyncClient,
        stream: str,
        settings: ProcessorSettings | None = None,
        *,
        jobs: JobRecorder | None = None,
    ) -> None:
        self._client = client
        self._stream = stream
        self._layouts = PartitionLayout(client, stream)
        self._plans = EmitPlanner(stream, ProcessorSettings() if settings is None else settings)
        self._jobs = jobs
        self._layout: Layout | None = None
        self._read_at = 0.0
        self._next = 0
        self._arrived = SeenIds()

    @takes_keywords_of(Emitter.emit)
    async def emit(self, event: str, data: Mapping[str, Any] | None = None, **options: Any) -> Emitted:
        """Emit one message; options as ``Emitter.emit``, without ``stream`` and ``debounce``."""
        if options.pop("stream", None) is not None or options.pop("debounce", None) is not None:
            raise ConfigurationError("a partitioned stream takes neither stream nor debounce. Nothing was sent")
        return (await self.emit_many([NewMessage(event, data, **options)]))[0]

    async def emit_many(self, messages: Iterable[NewMessage]) -> list[Emitted]:
        """Emit many messages: those of one partition atomically per chunk, those of one key in order."""
        waiting: list[Placed] = [(place, message, None) for place, message in enumerate(messages)]
        emitted: dict[int, Emitted] = {}
        while waiting:
            layout = await self._current()
            moved: list[Placed] = []
            for index, those in self._by_partition(waiting, layout).items():
                moved += await self._send(index, those, emitted)
            for _, message, sent_by in moved:
                self._layout = None
                key = message.key or ""
                if layout.previous is not None and partition_of(key, layout.previous) == sent_by:
                    # It has no message in the partition before the growth, and never gets one there again.
                    self._arrived.add(str(layout.count), key)
            waiting = moved
        return [emitted[place] for place in sorted(emitted)]

    def _by_partition(self, messages: Sequence[Placed], layout: Layout) -> dict[int, list[Placed]]:
        found: dict[int, list[Placed]] = {}
        for placed in messages:
            found.setdefault(self._choose(placed[1], placed[2], layout), []).append(placed)
        return found

    def _choose(self, message: NewMessage, sent_by: int | None, layout: Layout) -> int:
        if not isinstance(message, NewMessage):
            raise ConfigurationError(f"messages must be NewMessage(event, data, ...), got a {type(message).__name__}")
        if message.key is None:
            # Whatever has an id has one place: a second one with it is found there.
            self._next += 1
            return self._next % layout.count if message.id is None else partition_of(message.id, layout.count)
        if self._arrived.is_known(str(layout.count), message.key):
            return partition_of(message.key, layout.count)
        return layout.place_after(message.key, sent_by)

    async def _send(self, index: int, messages: Sequence[Placed], emitted: dict[int, Emitted]) -> list[Placed]:
        """Send to one partition; return the messages whose keys belong to another one by now."""
        moved: list[Placed] = []
        places = iter(messages)
        for planned in self._plans.steps([message for _, message, _ in messages], partition_name(self._stream, index)):
            step = _asking(planned)
            reply = await step.script.call(self._client, step.names, step.args, stream=step.keys.stream)
            here = [next(places) for _ in step.messages]
            kept = [number for number, answer in enumerate(reply) if answer[:1] != b">"]
            moved += [
                (place, message, index)
                for (place, message, _), answer in zip(here, reply, strict=True)
                if answer[:1] == b">"
            ]
            part = step._replace(messages=[step.messages[number] for number in kept])
            sent = parse_reply(part, [reply[number] for number in kept])
            emitted |= {here[number][0]: one for number, one in zip(kept, sent, strict=True)}
            if self._jobs is not None and (states := new_states(part, sent)):
                await self._jobs.record_all(step.keys, states, only_new=True)
        return moved

    async def _current(self) -> Layout:
        if self._layout is None or time.monotonic() - self._read_at > _LAYOUT_AGE_S:
            self._layout, self._read_at = await self._layouts.read(), time.monotonic()
        return self._layout


def _asking(step: ScriptCall) -> ScriptCall:
    """Return the step with messages that are due now only if their key has not moved."""
    if step.script.name != "emit":
        return step
    args = list(step.args)
    for place in range(1, len(args), _PER_MESSAGE):
        args[place] = args[place] or "?"
    return step._replace(args=args)
