"""Statistics of per-key ordering, and repair of keys that lost their current message by hand.

See docs/decisions/0050.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from conquiet.core.validation import require_positive
from conquiet.errors import ConfigurationError
from conquiet.processor.keys import keys_of
from conquiet.processor.partition_layout import partition_names
from conquiet.processor.scripts import script
from conquiet.redis_transport.client import AsyncClient, require_raw_client

_MOST_READ = 100_000
"""Maximum number of messages read by one search for stuck keys, because the search blocks the server."""


@dataclass(frozen=True, slots=True)
class KeyQueue:
    """The queue of waiting messages of one key.

    Attributes:
        key: The key.
        waiting: Messages behind the holder of the key.
    """

    key: str
    waiting: int


@dataclass(frozen=True, slots=True)
class OrderReport:
    """Statistics of the per-key ordering of one stream.

    Attributes:
        holders: Keys that have a message in the stream, pending, delayed or parked.
        waiting: Messages that wait behind them.
        group: The consumer group that settles messages with a key. None if none was settled yet.
        longest: The keys with the most waiting messages, longest first.
    """

    holders: int
    waiting: int
    group: str | None
    longest: tuple[KeyQueue, ...]


class KeyOrder:
    """Inspects the order by key of one stream.

    Args:
        client: A client without retries and without ``decode_responses``. The caller closes it.
        stream: The stream.
    """

    def __init__(self, client: AsyncClient, stream: str) -> None:
        require_raw_client(client)
        self._client = client
        self._keys = keys_of(stream)

    async def report(self, *, limit: int = 20) -> OrderReport:
        """Return the counts and the ``limit`` keys with the most waiting messages."""
        require_positive("limit", limit)
        keys = self._keys
        holders, group, waiting, queues = await script("order_facts").call(
            self._client, (keys.order, keys.waiting_keys), (limit,), stream=keys.stream
        )
        longest = tuple(KeyQueue(_decoded(key), number) for key, number in zip(queues[::2], queues[1::2], strict=True))
        return OrderReport(holders, waiting, group.decode(errors="backslashreplace") or None, longest)

    async def stuck(self) -> list[str]:
        """Return keys without a holder: another program removed its entry with XDEL, XTRIM, XACK or ZREM.

        Raises:
            ConfigurationError: There are too many messages to search in one step.
        """
        return await self._search("0")

    async def release_stuck(self) -> list[str]:
        """Start the next message of each stuck key. Return these keys. Raises as ``stuck``."""
        return await self._search("1")

    async def _search(self, release: str) -> list[str]:
        keys = self._keys
        found = await script("stuck_keys").call(
            self._client,
            (keys.stream, keys.delayed, keys.order, keys.parked),
            (release, _MOST_READ, keys.parked_event("")),
            stream=keys.stream,
        )
        if isinstance(found, int):
            raise ConfigurationError(
                f"stream {keys.stream!r} has {found} messages, and a search reads at most {_MOST_READ} in one "
                "step. Nothing was done. Search when it has fewer, or trim what is acknowledged first: conquiet trim"
            )
        return [_decoded(key) for key in found]


class PartitionedKeyOrder:
    """Inspects the order by key of a stream, partitioned or not; see ``KeyOrder``.

    A key is in one partition, except while it moves.

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


def _decoded(key: bytes) -> str:
    """Decode a key. The scripts store keys in their JSON encoding."""
    return msgspec.json.decode(b'"' + key + b'"', type=str)
