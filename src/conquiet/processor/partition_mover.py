"""Move messages to the partition that their key has moved to.

These are messages that became due, were replayed, or were emitted by a program that has not noticed a growth. One host
at a time moves the messages of a partition, in order. They are added to the new partition once (a digest of the message
is stored there), and then removed from the old one.

See docs/decisions/0051.
"""

import hashlib
import secrets

from conquiet.processor.delayed import Poll
from conquiet.processor.envelope import from_payload
from conquiet.processor.keys import Keys, keys_of
from conquiet.processor.partition_layout import PartitionLayout
from conquiet.processor.partitions import Layout, index_of, partition_name
from conquiet.processor.scripts import Arg, script
from conquiet.redis_transport.client import AsyncClient

_LEASE_MS = 10_000
_BATCH = 100
_REMEMBERED_MS = 24 * 60 * 60 * 1000


class PartitionMover:
    """Moves messages for one host. Called with the result of each poll.

    Args:
        client: A client without retries. The caller closes it.
        stream: Name of the partitioned stream.
        layout: Its number of partitions.
    """

    def __init__(self, client: AsyncClient, stream: str, layout: PartitionLayout) -> None:
        self._layout = layout
        self._client = client
        self._stream = stream
        self._token = secrets.token_hex(8)

    async def __call__(self, keys: Keys, found: Poll) -> None:
        """Move messages from this partition, unless another host does."""
        left = found.moving
        while left > 0:
            known, payloads = await script("moving_take").call(
                self._client, (keys.order,), (self._token, _LEASE_MS, _BATCH), stream=keys.stream
            )
            if not payloads or not known:
                return
            layout = await self._layout.read()
            for payload in payloads:
                await self._move(payload, layout, keys)
            left -= len(payloads)

    async def _move(self, payload: bytes, layout: Layout, old: Keys) -> None:
        # If that partition has no message of the key either, it redirects the message.
        index = layout.place_after(_key_of(payload), index_of(self._stream, old.stream))
        new = keys_of(partition_name(self._stream, index))
        digest = hashlib.sha1(payload, usedforsecurity=False).hexdigest()
        names = (new.stream, new.delayed, new.wake, new.order, new.emitted(f"moved:{digest}"))
        args: tuple[Arg, ...] = (payload, "", 1, _REMEMBERED_MS)
        await script("emit").call(self._client, names, args, stream=new.stream)
        await script("moving_done").call(self._client, (old.order,), (payload,), stream=old.stream)


def _key_of(payload: bytes) -> str:
    from conquiet.core.json_codec import decode_payload

    envelope = from_payload(decode_payload(payload, max_bytes=len(payload)), entry_id="0-0")
    assert envelope.key is not None  # noqa: S101 - only messages with a key are moved
    return envelope.key
