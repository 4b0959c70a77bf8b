"""Claim pending entries: stale entries, this consumer's entries from before a restart, entries of a lost reply."""

import time
from collections.abc import Mapping
from typing import Any

from conquiet.errors import QueueError
from conquiet.redis_transport.async_connection import AsyncRedisConnection
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.errors import ResponseError, translate
from conquiet.redis_transport.ids import next_id, parse_id
from conquiet.redis_transport.replies import pending_rows
from conquiet.runtime.claim_schedule import START
from conquiet.runtime.claiming import OWN, Taken, TakenOver, take_over, taken_over
from conquiet.runtime.entry_decoder import EntryDecoder
from conquiet.runtime.message import Charge, RuntimeMessage
from conquiet.runtime.parts import EngineParts

_PAGE = 100


class PendingReader:
    """Reads pending entries for one member of one group.

    Args:
        connection: The reader's connection.
        parts: The parts that all parts of the engine share. Messages in its table are not delivered a second time.
        decoder: Decodes entries into messages.
        newest: The last id that a read returned, by stream.
    """

    def __init__(
        self,
        connection: AsyncRedisConnection,
        parts: EngineParts,
        *,
        decoder: EntryDecoder,
        newest: Mapping[str, str],
    ) -> None:
        self._connection = connection
        self._group, self._consumer_id = parts.group, parts.consumer_id
        self._settings, self._table = parts.settings, parts.table
        self._decoder = decoder
        self._newest = newest
        self._recovered: dict[str, str] = {}
        """The position of ``recover_undelivered`` in each stream since the last loss."""

    async def read_own(self, stream: str, cursor: str, count: int) -> tuple[list[RuntimeMessage], str | None]:
        """Return entries that are pending for this consumer, and the next cursor (None: no more).

        Used at the start of a stream. Messages already in flight (recovered by a reconnect) are skipped.
        """
        messages, following = await self._take_over(stream, OWN, next_id(cursor), count)
        return messages, None if following == START else following

    async def recover_undelivered(
        self, stream: str, capacity: int, *, sent_at: float, by_claim: bool
    ) -> tuple[list[RuntimeMessage], bool]:
        """Return the entries of a reply that never arrived: pending for this consumer, young, and not in flight.

        They are not charged: no handler has seen them. A failed message is never mistaken for one of these: a group
        delivers in order, so entries of a lost read have greater ids than everything read before, and entries of a lost
        claim have been idle for no longer than the claim is old. XCLAIM requires the idle time just read, so an entry
        that another consumer has claimed since (which resets its idle time) stays there. The second value is True if
        more entries are left.

        Args:
            stream: The stream.
            capacity: Maximum number of returned messages.
            sent_at: When the call without a reply was sent.
            by_claim: The call was a claim, not a read.
        """
        held = self._table.of(stream)
        seen = (0, 0) if by_claim else parse_id(self._newest.get(stream, START))
        asked_at = time.monotonic()
        start = self._recovered.get(stream, "-")
        query = pack("XPENDING", stream, self._group, start, "+", _PAGE, self._consumer_id)
        rows = pending_rows(await self._call(stream, "XPENDING", query))
        # Measured after the reply: before it, a slow connection would make lost entries seem too old. The cost: a
        # message that failed just before a lost claim, within the time of this reply, runs again immediately.
        young_ms = int((time.monotonic() - sent_at) * 1000) + 1
        lost = [row for row in rows if row.id not in held and row.idle_ms <= young_ms and parse_id(row.id) > seen]
        who = (stream, self._group, self._consumer_id)
        # A released entry has a delivery count of 0; this delivery is its first.
        counts = [max(1, row.deliveries) for row in lost[:capacity]]
        claims = [
            pack("XCLAIM", *who, row.idle_ms, row.id, "RETRYCOUNT", n) for row, n in zip(lost, counts, strict=False)
        ]
        messages: list[RuntimeMessage] = []
        more = len(lost) > capacity or len(rows) == _PAGE
        passed = rows[-1].id if rows and len(lost) <= capacity else None
        replies = await self._connection.call(claims) if claims else []
        for row, deliveries, reply in zip(lost, counts, replies, strict=False):
            if isinstance(reply, ResponseError):
                if not messages:
                    raise self._translated(reply, stream, "XCLAIM")
                more = True  # deliver the claimed messages; the next call raises the error
                break
            found = self._decoder.decode(stream, reply, leased_at=asked_at)
            for message in found:
                message.delivery_count = deliveries
            messages += found
            # Skip it next time: a message that fails immediately would be recovered again and again.
            self._recovered[stream] = next_id(row.id)
        else:
            if passed is not None:
                self._recovered[stream] = next_id(passed)
        self._table.add(messages)
        return messages, more

    def begin_recovery(self) -> None:
        """Read everything again that is pending for us: a connection was lost."""
        self._recovered.clear()

    async def claim(self, stream: str, cursor: str, count: int) -> tuple[list[RuntimeMessage], str]:
        """Claim stale entries from ``cursor`` on. Return them and the next cursor (``0-0``: all were seen)."""
        return await self._take_over(stream, self._settings.claim_idle_ms, cursor, count)

    async def _take_over(self, stream: str, idle_ms: int, cursor: str, count: int) -> tuple[list[RuntimeMessage], str]:
        sent_at = time.monotonic()
        packed = take_over(
            stream,
            (self._group, self._consumer_id),
            self._settings,
            idle_ms=idle_ms,
            cursor=cursor,
            count=count,
            known=self._decoder.known_malformed(stream),
            in_flight=self._table.of(stream).values(),
        )
        taken = taken_over(await self._call(stream, "XCLAIM" if idle_ms == OWN else "XAUTOCLAIM", packed))
        messages = await self._still_ours(stream, self._messages(stream, taken, sent_at))
        self._table.add(messages)
        return messages, taken.cursor

    def _messages(self, stream: str, taken: TakenOver, leased_at: float) -> list[RuntimeMessage]:
        """Return the claimed entries as messages with delivery counts. Report malformed and deleted entries."""
        messages: list[RuntimeMessage] = []
        for entry in taken.entries:
            if entry.fields is None:
                found = self._decoder.malformed(stream, entry.id, entry.reason, leased_at=leased_at)
            else:
                found = self._decoder.decode(stream, [(entry.id.encode(), entry.fields)], leased_at=leased_at)
            for message in found:
                message.delivery_count = entry.deliveries
                message.charge = self._charge_of(message, entry)
            messages += found
        if taken.deleted:
            self._decoder.report_deleted(stream, taken.deleted)
        return messages

    def _charge_of(self, message: RuntimeMessage, entry: Taken) -> Charge:
        if entry.charged or message.malformed:
            return Charge.COUNTED
        return Charge.AT_START if self._table.has_survived(message) else Charge.AT_START_ALONE

    async def _still_ours(self, stream: str, messages: list[RuntimeMessage]) -> list[RuntimeMessage]:
        """Return the messages that are still pending for this consumer: another may have claimed one since."""
        if not messages:
            return messages
        who = (stream, self._group)
        packed = [pack("XPENDING", *who, message.id, message.id, 1, self._consumer_id) for message in messages]
        replies = await self._connection.call(packed)
        # A refusal proves nothing: the message stays in.
        return [message for message, reply in zip(messages, replies, strict=True) if reply]

    async def _call(self, stream: str, command: str, packed: bytes) -> Any:
        (reply,) = await self._connection.call([packed])
        if isinstance(reply, ResponseError):
            raise self._translated(reply, stream, command)
        return reply

    def _translated(self, reply: ResponseError, stream: str, command: str) -> QueueError:
        return translate(reply, stream=stream, group=self._group, command=command)
