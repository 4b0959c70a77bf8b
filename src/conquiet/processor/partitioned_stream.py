"""Operate on all partitions of a stream: pause, resume, dead letters, backlog, growth.

See docs/decisions/0051.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from conquiet.core.replay_report import ReplayReport
from conquiet.core.validation import require_positive
from conquiet.processor.dead_letters import EVERYTHING, DeadCause, DeadFilter, DeadMessage
from conquiet.processor.key_order import KeyOrder
from conquiet.processor.keys import keys_of
from conquiet.processor.partition_layout import PartitionLayout, partition_names
from conquiet.processor.partitioned_dead_letters import PartitionedDeadLetters
from conquiet.processor.partitions import Layout, require_stream_name
from conquiet.processor.pauses import Pauses
from conquiet.redis_transport.client import AsyncClient
from conquiet.redis_transport.client_commands import commands


@dataclass(frozen=True, slots=True)
class PartitionedBacklog:
    """The total backlog of all partitions of a stream.

    Attributes:
        partitions: Number of partitions.
        entries: Entries in the streams, including acknowledged entries that were not removed yet.
        waiting_by_key: Messages that wait behind others of their key.
        delayed: Delayed messages and retries.
        dead: Dead letters.
        by_partition: Entries of each partition.
    """

    partitions: int
    entries: int
    waiting_by_key: int
    delayed: int
    dead: int
    by_partition: tuple[int, ...]


class PartitionedStream:
    """Inspects and changes all partitions of a stream.

    Args:
        client: A client without retries and without ``decode_responses``. The caller closes it.
        stream: Name of the stream.
    """

    def __init__(self, client: AsyncClient, stream: str) -> None:
        self._client = client
        self._stream = require_stream_name(stream)
        self._layout = PartitionLayout(client, stream)
        self._pauses = Pauses(client)

    async def layout(self) -> Layout:
        """Return the number of partitions."""
        return await self._layout.read()

    async def grow(self, partitions: int) -> Layout:
        """Grow to this number; see ``PartitionLayout.grow``."""
        return await self._layout.grow(partitions)

    async def names(self) -> list[str]:
        """Return the keys of the partitions, which are ordinary streams."""
        return await partition_names(self._client, self._stream)

    async def pause(self, event: str | None = None) -> bool:
        """Pause all partitions, or one event of them, on all hosts. Return False if all were already paused."""
        return any([await self._pauses.pause(name, event) for name in await self.names()])

    async def resume(self, event: str | None = None) -> bool:
        """End a pause. Return False if there was none."""
        return any([await self._pauses.resume(name, event) for name in await self.names()])

    async def paused(self) -> dict[str, int]:
        """Return the pauses of all partitions and their start times (ms)."""
        found: dict[str, int] = {}
        for name in await self.names():
            found |= {
                what: min(since, found.get(what, since)) for what, since in (await self._pauses.paused(name)).items()
            }
        return found

    async def backlog(self) -> PartitionedBacklog:
        """Return the total backlog of the partitions."""
        lengths, waiting, delayed, dead = [], 0, 0, 0
        names = await self.names()
        for name in names:
            keys = keys_of(name)
            sizes = [("XLEN", name), ("ZCARD", keys.delayed), ("XLEN", keys.dead)]
            length, in_set, dead_here = await commands(self._client, sizes, action="counting", stream=name)
            lengths.append(length)
            delayed += in_set
            dead += dead_here
            waiting += (await KeyOrder(self._client, name).report(limit=1)).waiting
        return PartitionedBacklog(len(names), sum(lengths), waiting, delayed, dead, tuple(lengths))

    async def dead_letters(self, where: DeadFilter = EVERYTHING, *, limit: int = 100) -> list[DeadMessage]:
        """Return the oldest ``limit`` dead letters of all partitions, oldest first."""
        require_positive("limit", limit)
        all_of_them = self.all_dead_letters
        found: list[DeadMessage] = []
        cursor: str | None = None
        while len(found) < limit:
            page = await all_of_them.list(cursor=cursor, limit=limit, where=where)
            found += page.items
            cursor = page.cursor
            if cursor is None:
                break
        return found[:limit]

    async def dead_causes(self) -> Sequence[DeadCause]:
        """Return the causes of the dead letters, most frequent first."""
        return await self.all_dead_letters.causes()

    async def replay(self, where: DeadFilter, *, dry_run: bool = False) -> ReplayReport:
        """Return dead letters to the end of their partitions; a message with a key joins the line of its key."""
        return await self.all_dead_letters.replay(where, dry_run=dry_run)

    async def discard(self, where: DeadFilter, *, dry_run: bool = False) -> int:
        """Delete dead letters permanently. Return how many were (or would be) deleted."""
        return await self.all_dead_letters.discard(where, dry_run=dry_run)

    @property
    def all_dead_letters(self) -> PartitionedDeadLetters:
        """The dead letters of all partitions, with everything that ``DeadLetters`` offers."""
        return PartitionedDeadLetters(self._client, self._stream)
