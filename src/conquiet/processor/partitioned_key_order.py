"""The per-key ordering of all partitions of a stream. A key is in one partition, except while it moves.

See docs/decisions/0051.
"""

from collections.abc import Sequence

from conquiet.processor.key_order import KeyOrder, KeyQueue, OrderReport
from conquiet.processor.partition_layout import partition_names
from conquiet.redis_transport.client import AsyncClient


class PartitionedKeyOrder:
    """Inspects the order by key of a stream, partitioned or not; see ``KeyOrder``.

    Args:
        client: A client without retries. The caller closes it.
        stream: Name of the stream. Each call reads its number of partitions.
    """

    def __init__(self, client: AsyncClient, stream: str) -> None:
        self._client = client
        self._stream = stream

    async def report(self, *, limit: int = 20) -> OrderReport:
        """Return the total counts of all partitions, and the ``limit`` keys with the most waiting messages."""
        reports = [await one.report(limit=limit) for one in await self._partitions()]
        queues: dict[str, int] = {}
        for queue in (queue for report in reports for queue in report.longest):
            queues[queue.key] = queues.get(queue.key, 0) + queue.waiting
        longest = sorted((KeyQueue(key, waiting) for key, waiting in queues.items()), key=lambda queue: -queue.waiting)
        return OrderReport(
            holders=sum(report.holders for report in reports),
            waiting=sum(report.waiting for report in reports),
            group=next((report.group for report in reports if report.group is not None), None),
            longest=tuple(longest[:limit]),
        )

    async def stuck(self) -> list[str]:
        """Return keys without a holder, in any partition. Raises as ``KeyOrder.stuck``."""
        return [key for one in await self._partitions() for key in await one.stuck()]

    async def release_stuck(self) -> list[str]:
        """Start the next message of each stuck key. Return these keys. Raises as ``stuck``."""
        return [key for one in await self._partitions() for key in await one.release_stuck()]

    async def _partitions(self) -> Sequence[KeyOrder]:
        return [KeyOrder(self._client, name) for name in await partition_names(self._client, self._stream)]
