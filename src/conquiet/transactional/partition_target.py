"""Publish to a partitioned stream: each message to the partition of its key, messages without a key round-robin.

See docs/decisions/0051.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from conquiet.transactional.targets import MAX_PAYLOAD_BYTES, ToProcessor

if TYPE_CHECKING:
    from conquiet.processor.partitions import Layout
    from conquiet.redis_transport.client import AnyRedis


class _Placed(NamedTuple):
    """A payload to send: its key, and the partition that redirected the key."""

    payload: bytes
    key: str | None
    sent_by: int | None = None


class ToPartitions(ToProcessor):
    """Publishes to the handlers of a ``PartitionedProcessor``; see ``ToProcessor``.

    Messages of one key are published in order. A batch is one step on the server for each partition.

    Args:
        redis: As for ``ToStream``.
        stream: The partitioned stream.
        event: As for ``ToProcessor``.
        max_payload_bytes: Largest entry.
        replicas: As for ``ToStream``.
    """

    def __init__(
        self,
        redis: "AnyRedis",
        stream: str,
        event: str | None = None,
        *,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        replicas: int = 0,
    ) -> None:
        from conquiet.processor.partition_routing import PartitionRouter
        from conquiet.processor.partitions import require_stream_name

        name = require_stream_name(stream)
        super().__init__(redis, name, event, max_payload_bytes=max_payload_bytes, replicas=replicas)
        self._router = PartitionRouter()

    def _send(self, encoded: Sequence[bytes], keys: Sequence[bytes | None]) -> None:
        waiting = [
            _Placed(payload, None if key is None else key.decode()) for payload, key in zip(encoded, keys, strict=True)
        ]
        while waiting:
            layout = self._current()
            chosen: dict[int, list[_Placed]] = {}
            for placed in waiting:
                index = self._router.choose(placed.key, None, placed.sent_by, layout)
                chosen.setdefault(index, []).append(placed)
            waiting = [moved for index, those in chosen.items() for moved in self._send_to(index, those)]
            for placed in waiting:
                self._router.note_sent_on(placed.key or "", placed.sent_by, layout)

    def _send_to(self, index: int, messages: Sequence[_Placed]) -> list[_Placed]:
        """Send to one partition; return the messages that it redirects: their keys have moved to another one."""
        from conquiet.processor.keys import keys_of
        from conquiet.processor.partitions import partition_name
        from conquiet.processor.scripts import script

        keys = keys_of(partition_name(self.stream, index))
        args = [value for placed in messages for value in (placed.payload, "?", 0, 0)]
        words = script("emit").words((keys.stream, keys.delayed, keys.wake, keys.order), args, in_full=True)
        reply = self._run(words, stream=keys.stream)
        return [
            placed._replace(sent_by=index) for placed, answer in zip(messages, reply, strict=True) if answer[:1] == b">"
        ]

    def _current(self) -> "Layout":
        from conquiet.processor.keys import keys_of
        from conquiet.processor.partitions import read_layout
        from conquiet.redis_transport.commands import pack

        layout = self._router.layout
        if layout is None:
            packed = pack("HMGET", f"{keys_of(self.stream).base}:partitions", "count", "previous", "next")
            layout = self._router.layout = read_layout(self._connection.call("HMGET", packed, stream=self.stream))
        return layout
