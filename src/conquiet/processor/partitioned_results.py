"""Wait for a job of a partitioned stream. Its result is in the partition in which the job ended.

A message without a key ends in the partition it was emitted to. A message with a key may be moved to another partition
by a growth while it waits for a retry. So after a growth, and for a job with only a known id, all partitions are
queried round-robin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from conquiet.processor.partition_layout import PartitionLayout
from conquiet.processor.partitions import Layout, partition_name
from conquiet.processor.results import JobHandle, SyncJobHandle
from conquiet.redis_transport.client import AsyncClient, SyncClient


@dataclass(frozen=True, slots=True)
class EmittedTo:
    """The partition that a message was emitted to.

    Attributes:
        partition: Key of the partition.
        can_move: True if the message has a key.
        layout: The layout at that time. None if it has changed since.
    """

    partition: str
    can_move: bool
    layout: Layout | None

    def streams(self, stream: str, layout: Layout) -> Sequence[str]:
        """Return the partitions that may hold the job now."""
        is_growing = layout.previous is not None or layout.following is not None
        if self.can_move and (is_growing or layout != self.layout):
            return [partition_name(stream, index) for index in range(layout.to_read)]
        return (self.partition,)


_UNKNOWN: Final = EmittedTo("", can_move=True, layout=None)


class PartitionedJobHandle(JobHandle):
    """A job of a partitioned stream; see ``JobHandle``.

    Args:
        client: A client without retries. The caller closes it.
        stream: Name of the partitioned stream.
        job_id: The job's id.
        emitted_to: Where the job was emitted to, if that is known.

    Attributes:
        emitted_to: As given.
    """

    def __init__(self, client: AsyncClient, stream: str, job_id: str, emitted_to: EmittedTo = _UNKNOWN) -> None:
        super().__init__(client, stream, job_id)
        self.emitted_to = emitted_to

    async def _streams(self) -> Sequence[str]:
        if not self.emitted_to.can_move:
            return (self.emitted_to.partition,)
        return self.emitted_to.streams(self.stream, await PartitionLayout(self._client, self.stream).read())


class SyncPartitionedJobHandle(SyncJobHandle):
    """``PartitionedJobHandle`` for code without asyncio.

    Args:
        client: A client without retries. The caller closes it.
        stream: Name of the partitioned stream.
        job_id: The job's id.
        emitted_to: Where the job was emitted to, if that is known.
    """

    def __init__(self, client: SyncClient, stream: str, job_id: str, emitted_to: EmittedTo = _UNKNOWN) -> None:
        super().__init__(client, stream, job_id)
        self._job = PartitionedJobHandle(client, stream, job_id, emitted_to)  # type: ignore[arg-type]  # see the base
