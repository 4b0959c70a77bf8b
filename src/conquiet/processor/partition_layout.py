"""The number of a stream's partitions, stored on the server, and its growth while workers run.

    grow(32) ─▶ announced ─▶ every partition is marked ─▶ 32 in use ─▶ no key left in its old partition ─▶ finished

Each step is one script on one slot and may be repeated: the next call completes an interrupted growth.

See docs/decisions/0051.
"""

from typing import Any

from conquiet.errors import ConfigurationError
from conquiet.processor.keys import keys_of
from conquiet.processor.partitions import Layout, partition_name, read_layout, require_partitions, require_stream_name
from conquiet.processor.pauses import WHOLE_STREAM, Pauses
from conquiet.processor.scripts import script
from conquiet.redis_transport.client import AsyncClient

_MOST_KEYS = 100_000
"""Maximum number of keys read by one check of a partition, because the check blocks the server."""


class PartitionLayout:
    """Reads and changes the number of partitions of one stream.

    Args:
        client: A client without retries. The caller closes it.
        stream: Name of the stream.
    """

    def __init__(self, client: AsyncClient, stream: str) -> None:
        self._client = client
        self._stream = require_stream_name(stream)
        self._name = f"{keys_of(stream).base}:partitions"

    async def read(self) -> Layout:
        """Return the number of partitions, 1 if the stream was never partitioned."""
        return read_layout(await self._run("partition_count"))

    async def grow(self, partitions: int) -> Layout:
        """Grow to this number of partitions. No effect if there are as many. Workers notice it within seconds.

        Messages without a key go to the new partitions immediately. A key moves to its new partition once it has no
        running and no waiting message in the old one, so that its order holds.

        Raises:
            ConfigurationError: The previous growth is not finished: keys still have messages in their old partition.
        """
        require_partitions(partitions)
        while True:
            before, after = await self._run("partition_begin", partitions)
            if after == 0:
                return await self.read()
            if after < 0:
                if await self.finish_growth():
                    continue
                raise ConfigurationError(
                    f"stream {self._stream!r} is still growing to {before} partitions: some keys have messages at work "
                    "or waiting where they were before. Nothing was changed. Try again when those are done"
                )
            await self._copy_pauses(before, after)
            # New partitions first: a message that is redirected must find a partition that is already marked.
            for index in [*range(before, after), *range(before)]:
                keys = keys_of(partition_name(self._stream, index))
                await script("partition_mark").call(self._client, (keys.order,), (after, index), stream=keys.stream)
            await self._run("partition_end", before, after)
            await self.finish_growth()

    async def finish_growth(self) -> bool:
        """Finish a growth if no key has messages in its old partition. Return True if no growth is under way."""
        layout = await self.read()
        if layout.following is not None:
            await self.grow(layout.following)
            layout = await self.read()
        if layout.previous is None:
            return True
        for index in range(layout.previous):
            keys = keys_of(partition_name(self._stream, index))
            left = await script("partition_left").call(self._client, (keys.order,), (_MOST_KEYS,), stream=keys.stream)
            if left != 0:
                return False
        await self._run("partition_over", layout.previous, layout.count)
        return True

    async def _copy_pauses(self, before: int, after: int) -> None:
        pauses = Pauses(self._client)
        paused = await pauses.paused(self._stream)
        for index in range(before, after):
            for what in paused:
                event = None if what == WHOLE_STREAM else what
                await pauses.pause(partition_name(self._stream, index), event=event)

    async def _run(self, name: str, *args: int) -> Any:
        return await script(name).call(self._client, (self._name,), args, stream=self._stream)


async def partition_names(client: AsyncClient, stream: str) -> list[str]:
    """Return the keys of a stream's partitions. Only the stream itself if it is not partitioned."""
    if "{" in stream or "}" in stream:
        return [stream]  # a name with a hash tag cannot be partitioned
    layout = await PartitionLayout(client, stream).read()
    return [partition_name(stream, index) for index in range(layout.to_read)]
