"""Read streams as a member of a group: create groups, read new entries and the group's lag.

One reader has one connection and the streams of one server (in a Redis Cluster: of one node). It sends commands and
decodes replies. The fetcher decides when to read. ``PendingReader`` reads pending entries.
"""

import time
from collections.abc import Sequence
from typing import Any

from conquiet.errors import QueueError
from conquiet.redis_transport.async_connection import AsyncRedisConnection
from conquiet.redis_transport.commands import create_group, pack
from conquiet.redis_transport.errors import ResponseError, is_group_there_already, translate
from conquiet.redis_transport.replies import group_lag, group_row
from conquiet.runtime.acknowledger import AckBatch
from conquiet.runtime.entry_decoder import EntryDecoder
from conquiet.runtime.message import RuntimeMessage
from conquiet.runtime.parts import EngineParts
from conquiet.runtime.pending_reader import PendingReader
from conquiet.runtime.stream_scheduler import ReadRequest


class StreamReader:
    """Reads for one member of one group.

    Args:
        connection: A dedicated connection. A blocking read occupies it.
        parts: The parts that all parts of the engine share. Messages in its table are not delivered a second time.

    Attributes:
        pending: Reads pending entries over the same connection.
    """

    def __init__(self, connection: AsyncRedisConnection, parts: EngineParts) -> None:
        self._connection = connection
        self.group = parts.group
        self._consumer_id, self._table = parts.consumer_id, parts.table
        self._names: dict[bytes, str] = {}
        self._reads: dict[tuple[ReadRequest, int], bytes] = {}
        self._newest: dict[str, str] = {}
        self._decoder = EntryDecoder(parts)
        self.pending = PendingReader(connection, parts, decoder=self._decoder, newest=self._newest)

    async def create_groups(self, streams: Sequence[str]) -> list[str]:
        """Create missing groups at the first entry of their stream. Return the streams of the created groups."""
        packed = [create_group(stream, self.group) for stream in streams]
        created = []
        for stream, reply in zip(streams, await self._connection.call(packed), strict=True):
            if not isinstance(reply, ResponseError):
                created.append(stream)
                self._newest.pop(stream, None)  # its ids may restart
            elif not is_group_there_already(reply):
                raise self._translated(reply, stream, "XGROUP CREATE")
            self._names[stream.encode()] = stream
        return created

    async def read(
        self, requests: Sequence[ReadRequest], *, wait_ms: int, acks: AckBatch | None = None
    ) -> tuple[list[RuntimeMessage], dict[str, int]]:
        """Send acknowledgements and reads in one write. Return the new messages and their number by stream.

        Args:
            requests: One XREADGROUP each.
            wait_ms: Blocking time of the read, 0 for a non-blocking read. Requires a single request.
            acks: Acknowledgements to send first. They are confirmed as soon as their replies arrive.
        """
        # A lease starts before the read: the reply may have been in the socket while this process was suspended.
        sent_at = time.monotonic()
        packed = [self._packed(request, wait_ms) for request in requests]
        try:
            self._connection.send(packed if acks is None else acks.commands + packed)
            if acks is not None:
                acks.confirm(await self._connection.receive(len(acks.commands)))
                acks = None
        finally:
            if acks is not None:
                acks.requeue()
        messages: list[RuntimeMessage] = []
        found: dict[str, int] = {}
        failure: tuple[ResponseError, ReadRequest] | None = None
        for request, reply in zip(requests, await self._connection.receive(len(requests)), strict=True):
            if isinstance(reply, ResponseError):
                failure = reply, request
            elif reply:
                for key, raw in reply:
                    stream = self._names[key]
                    self._newest[stream] = raw[-1][0].decode()
                    fresh = self._decoder.decode(stream, raw, leased_at=sent_at)
                    if held := self._table.of(stream):
                        # Running messages are read again if the group was set back, by hand or by a failover.
                        fresh = [message for message in fresh if message.id not in held]
                    messages += fresh
                    found[stream] = len(fresh)
        self._table.add(messages)
        if failure is not None and not messages:
            refusal, refused = failure
            raise self._translated(refusal, _meant(refusal, refused.streams), "XREADGROUP")
        return messages, found

    async def lag(self, streams: Sequence[str]) -> dict[str, int | None]:
        """Return the number of undelivered entries by stream, None if the server does not report it (before 7.0)."""
        replies = await self._connection.call([pack("XINFO", "GROUPS", stream) for stream in streams])
        return {stream: _lag(reply, self.group) for stream, reply in zip(streams, replies, strict=True)}

    def _packed(self, request: ReadRequest, wait_ms: int) -> bytes:
        key = (request, wait_ms)
        packed = self._reads.get(key)
        if packed is None:
            if len(self._reads) >= 64:  # noqa: PLR2004 - bounds the cache: capacity and waiting time vary
                self._reads.clear()
            block = ("BLOCK", wait_ms) if wait_ms else ()
            news = [">"] * len(request.streams)
            who = ("XREADGROUP", "GROUP", self.group, self._consumer_id, "COUNT", request.each)
            packed = self._reads[key] = pack(*who, *block, "STREAMS", *request.streams, *news)
        return packed

    def _translated(self, reply: ResponseError, stream: str, command: str) -> QueueError:
        return translate(reply, stream=stream, group=self.group, command=command)


def _meant(refusal: ResponseError, streams: Sequence[str]) -> str:
    """Return the stream that the error reply names, or all streams if it names none."""
    return next((stream for stream in streams if f"'{stream}'" in str(refusal)), ", ".join(streams))


def _lag(reply: Any, group: str) -> int | None:
    if isinstance(reply, ResponseError):
        return None
    row = group_row(reply, group)
    return None if row is None else group_lag(row)
