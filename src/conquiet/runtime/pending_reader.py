"""Claim pending entries: stale entries, this consumer's entries from before a restart, entries of a lost reply."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from conquiet.errors import QueueError
from conquiet.redis_transport.async_connection import AsyncRedisConnection
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.errors import ResponseError, translate
from conquiet.redis_transport.ids import next_id, parse_id
from conquiet.redis_transport.replies import pending_rows
from conquiet.runtime.claim_schedule import START
from conquiet.runtime.claiming import OWN, UNDO_DELIVERY_COUNT, Taken, TakenOver, take_over, taken_over
from conquiet.runtime.entry_decoder import EntryDecoder
from conquiet.runtime.lease_table import LeaseTable
from conquiet.runtime.message import Charge, RuntimeMessage
from conquiet.runtime.settings import RuntimeSettings

_PAGE = 100


class PendingReader:
    """Reads pending entries for one member of one group.

    Args:
        connection: The reader's connection.
        group: The consumer group.
        consumer_id: Name of this consumer in it.
        settings: Sizes and times.
        table: Messages in flight. They are not delivered a second time.
        decoder: Decodes entries into messages.
        newest: The last id that a read returned, by stream.
    """

    def __init__(
        self,
        connection: AsyncRedisConnection,
        *,
        group: str,
        consumer_id: str,
        settings: RuntimeSettings,
        table: LeaseTable,
        decoder: EntryDecoder,
        newest: Mapping[str, str],
    ) -> None:
        self._connection = connection
        self._group = group
        self._consumer_id = consumer_id
        self._settings = settings
        self._table = table
        self._decoder = decoder
        self._newest = newest
        self._recovered: dict[str, str] = {}
        """The position of ``recover_undelivered`` in each stream since the last loss."""
        self._has_autoclaim = True

    async def read_own(self, stream: str, cursor: str, count: int) -> tuple[list[RuntimeMessage], str | None]:
        """Return entries that are pending for this consumer, and the next cursor (None: no more).

        Used at the start of a stream. Messages already in flight (recovered by a reconnect) are skipped.
        """
        sent_at = time.monotonic()
        taken = await self._take_over(stream, idle_ms=OWN, cursor=next_id(cursor), count=count, command="XCLAIM")
        held = self._table.of(stream)
        messages = [message for message in self._messages(stream, taken, sent_at) if message.id not in held]
        messages = await self._count_deliveries(stream, messages)
        self._table.add(messages)
        return messages, None if taken.cursor == START else taken.cursor

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
        if not self._has_autoclaim:
            return await self._claim_without_autoclaim(stream, cursor, count)
        sent_at = time.monotonic()
        idle_ms = self._settings.claim_idle_ms
        try:
            taken = await self._take_over(
                stream,
                idle_ms=idle_ms,
                cursor=cursor,
                count=count,
                command="XAUTOCLAIM",
                in_flight=self._table.of(stream).values(),
            )
        except _NoSuchCommandError:
            self._has_autoclaim = False
            return await self._claim_without_autoclaim(stream, cursor, count)
        return await self._claimed(stream, self._messages(stream, taken, sent_at)), taken.cursor

    async def _take_over(
        self,
        stream: str,
        *,
        idle_ms: int,
        cursor: str,
        count: int,
        command: str,
        in_flight: Iterable[RuntimeMessage] = (),
    ) -> TakenOver:
        packed = take_over(
            stream,
            (self._group, self._consumer_id),
            self._settings,
            idle_ms=idle_ms,
            cursor=cursor,
            count=count,
            known=self._decoder.known_malformed(stream),
            in_flight=in_flight,
        )
        (reply,) = await self._connection.call([packed])
        if isinstance(reply, ResponseError):
            if "unknown command" in str(reply).lower() or "unknown redis command" in str(reply).lower():
                raise _NoSuchCommandError from reply
            raise self._translated(reply, stream, command)
        return taken_over(reply)

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

    async def _claimed(self, stream: str, messages: list[RuntimeMessage]) -> list[RuntimeMessage]:
        held = self._table.of(stream)
        # A message in flight here became stale because the heartbeat was late or its handler exceeded max_lease_s. It
        # is running and is not started again, so the claim must not be counted.
        ours = [held[message.id] for message in messages if message.id in held and message.charge is Charge.COUNTED]
        if ours:
            await self._undo_charge(stream, ours)
        messages = [message for message in messages if message.id not in held]
        messages = await self._count_deliveries(stream, messages)
        self._table.add(messages)
        return messages

    async def _undo_charge(self, stream: str, running: list[RuntimeMessage]) -> None:
        expired = [message for message in running if message.lease_lost]
        idle = {False: 0, True: self._settings.claim_idle_ms}  # an expired lease stays claimable
        calls = [
            pack(
                "EVAL",
                UNDO_DELIVERY_COUNT,
                1,
                stream,
                self._group,
                self._consumer_id,
                idle[over],
                *(m.id for m in those),
            )
            for over, those in ((True, expired), (False, [m for m in running if not m.lease_lost]))
            if those
        ]
        for reply in await self._connection.call(calls):
            if isinstance(reply, ResponseError):
                raise self._translated(reply, stream, "EVAL")

    async def _count_deliveries(self, stream: str, messages: list[RuntimeMessage]) -> list[RuntimeMessage]:
        """Set the delivery counts, and return the messages that are still pending for this consumer.

        Only XPENDING returns the count; new entries have 1. An entry is no longer pending if this engine acknowledged
        it on the other connection between the claim and its reply.
        """
        if not messages:
            return messages
        packed = [
            pack("XPENDING", stream, self._group, message.id, message.id, 1, self._consumer_id) for message in messages
        ]
        ours = []
        for message, reply in zip(messages, await self._connection.call(packed), strict=True):
            rows = [] if isinstance(reply, ResponseError) else pending_rows(reply)
            if rows:
                message.delivery_count = rows[0].deliveries + (message.charge is not Charge.COUNTED)
            if rows or isinstance(reply, ResponseError):
                ours.append(message)
        return ours

    async def _claim_without_autoclaim(self, stream: str, cursor: str, count: int) -> tuple[list[RuntimeMessage], str]:
        """Claim with XPENDING, filtered here, and XCLAIM. SPEC(002 CM-001.3)."""
        sent_at = time.monotonic()
        min_idle_ms = self._settings.claim_idle_ms
        start = "-" if cursor == START else cursor
        rows = pending_rows(
            await self._call(stream, "XPENDING", pack("XPENDING", stream, self._group, start, "+", _PAGE))
        )
        stale = [row.id for row in rows if row.idle_ms >= min_idle_ms][:count]
        next_cursor = START
        if len(stale) == count:
            next_cursor = next_id(stale[-1])
        elif len(rows) == _PAGE:
            next_cursor = next_id(rows[-1].id)
        if not stale:
            return [], next_cursor
        # XCLAIM checks the idle time again, so two engines that read the same page do not both claim an entry.
        packed = pack("XCLAIM", stream, self._group, self._consumer_id, min_idle_ms, *stale)
        raw = await self._call(stream, "XCLAIM", packed)
        entries = [item for item in raw if item is not None]
        return await self._claimed(stream, self._decoder.decode(stream, entries, leased_at=sent_at)), next_cursor

    async def _call(self, stream: str, command: str, packed: bytes) -> Any:
        (reply,) = await self._connection.call([packed])
        if isinstance(reply, ResponseError):
            raise self._translated(reply, stream, command)
        return reply

    def _translated(self, reply: ResponseError, stream: str, command: str) -> QueueError:
        return translate(reply, stream=stream, group=self._group, command=command)


class _NoSuchCommandError(Exception):
    """The command is disabled on the server."""
