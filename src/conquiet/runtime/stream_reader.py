"""Reading streams as a member of a group: groups, new entries, stale ones, and our own after a crash.

One reader has one connection and the streams of one server (in a Redis Cluster: of one node). It asks
and translates; when to ask is the intake's decision.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from conquiet.errors import MalformedMessageError, QueueError
from conquiet.kernel.redaction import printable
from conquiet.queue.codec import FIELD, NOT_ONE_FIELD, WRONG_FIELD, CodecError, decode_payload
from conquiet.queue.commands import pack
from conquiet.queue.faults import is_group_there_already, translate
from conquiet.queue.replies import autoclaimed, pending_rows
from conquiet.runtime.acknowledger import AckBatch, Acknowledger
from conquiet.runtime.context import RuntimeMessage
from conquiet.runtime.fairness import Take
from conquiet.runtime.handover import UNCHARGE
from conquiet.runtime.lease import LeaseTable
from conquiet.runtime.metrics import observe_deleted, observe_malformed
from conquiet.runtime.news import News
from conquiet.runtime.settings import RuntimeSettings
from conquiet.runtime.stealing import START, after, place_of
from conquiet.runtime.wire import Wire

_PAGE = 100


class StreamReader:
    """Reads for one member of one group.

    Args:
        wire: A connection of its own. It may be blocked for as long as a read waits.
        group: The consumer group.
        consumer_id: Our name in it.
        settings: Sizes and times.
        table: What we hold; nothing in it is delivered a second time.
        on_error: Told about entries that cannot be delivered.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        group: str,
        consumer_id: str,
        settings: RuntimeSettings,
        table: LeaseTable,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._wire = wire
        self._group = self.group = group
        self._consumer_id = consumer_id
        self._settings = settings
        self._table = table
        self._on_error = on_error
        self._names: dict[bytes, str] = {}
        self._reads: dict[tuple[Take, int], bytes] = {}
        self._newest: dict[str, str] = {}
        """The last id that a read has brought from each stream."""
        self._recovered: dict[str, str] = {}
        """How far ``recover_stranded`` has come in each stream since the last loss."""
        self._has_autoclaim = True
        # Malformed and deleted entries come back with every claim. One report each is enough.
        self._news = News()

    async def create_groups(self, streams: Sequence[str]) -> list[str]:
        """Create each group from its stream's first entry on, unless it is there. Returns those created."""
        packed = [pack("XGROUP", "CREATE", stream, self._group, "0-0", "MKSTREAM") for stream in streams]
        created = []
        for stream, reply in zip(streams, await self._wire.call(packed), strict=True):
            if not isinstance(reply, ResponseError):
                created.append(stream)
                self._newest.pop(stream, None)  # it begins anew
            elif not is_group_there_already(reply):
                raise self._translated(reply, stream, "XGROUP CREATE")
            self._names[stream.encode()] = stream
        return created

    async def read(
        self, takes: Sequence[Take], *, wait_ms: int, acks: AckBatch | None, acknowledger: Acknowledger
    ) -> tuple[list[RuntimeMessage], dict[str, int]]:
        """Send what is due to be acknowledged and the reads in one write; return the new messages.

        With them comes how many there are of each stream that had any.

        Args:
            takes: One XREADGROUP each.
            wait_ms: How long the server may wait for entries; 0 not at all. Only with a single take.
            acks: Acknowledgements that go first.
            acknowledger: Who is told that these are confirmed, as soon as they are.
        """
        # A lease counts from before the read: the reply may have lain in our socket while we were stopped.
        sent_at = time.monotonic()
        packed = [self._packed(take, wait_ms) for take in takes]
        try:
            self._wire.send(packed if acks is None else acks.commands + packed)
            if acks is not None:
                acknowledger.confirm(acks, await self._wire.receive(len(acks.commands)))
                acks = None
        finally:
            if acks is not None:
                acknowledger.put_back(acks)
        messages: list[RuntimeMessage] = []
        found: dict[str, int] = {}
        failure: tuple[ResponseError, Take] | None = None
        for take, reply in zip(takes, await self._wire.receive(len(takes)), strict=True):
            if isinstance(reply, ResponseError):
                failure = reply, take
            elif reply:
                for key, raw in reply:
                    stream = self._names[key]
                    self._newest[stream] = raw[-1][0].decode()
                    fresh: list[RuntimeMessage] = []
                    self._deliver(stream, raw, fresh, leased_at=sent_at)
                    if held := self._table.of(stream):
                        # What is running here already comes again where the group was set back: by hand, or a failover.
                        fresh = [message for message in fresh if message.id not in held]
                    messages += fresh
                    found[stream] = len(fresh)
        self._table.add(messages)
        if failure is not None and not messages:
            refusal, refused = failure
            raise self._translated(refusal, _meant(refusal, refused.streams), "XREADGROUP")
        return messages, found

    async def read_own(self, stream: str, cursor: str, count: int) -> tuple[list[RuntimeMessage], str | None]:
        """Return entries pending under our own name, and where to go on (None: that was all).

        For the start of a stream. What we hold of it by then (a reconnect brought it back) is left out: it is
        in a handler's hands.
        """
        sent_at = time.monotonic()
        who = ("XREADGROUP", "GROUP", self._group, self._consumer_id)
        (reply,) = await self._wire.call([pack(*who, "COUNT", count, "STREAMS", stream, cursor)])
        if isinstance(reply, ResponseError):
            raise self._translated(reply, stream, "XREADGROUP")
        raw = reply[0][1] if reply else []
        if not raw:
            return [], None
        messages: list[RuntimeMessage] = []
        self._deliver(stream, raw, messages, leased_at=sent_at)
        held = self._table.of(stream)
        messages = [message for message in messages if message.id not in held]
        messages = await self._count_deliveries(stream, messages)
        self._table.add(messages)
        return messages, raw[-1][0].decode()

    async def recover_stranded(
        self, stream: str, room: int, *, sent_at: float, by_claim: bool
    ) -> tuple[list[RuntimeMessage], bool]:
        """Return what the server gave us in a reply that never arrived: pending for us, young, and not held.

        It is not charged: nobody has seen it. A message that failed is not taken for one: a group delivers in order,
        so what a lost read has brought stands behind everything we have seen; what a lost claim has brought is at
        least not older than the claim. XCLAIM asks for the idle time just seen, so that an entry taken by another
        meanwhile (whose clock then started anew) stays where it is. The second value is True if there was no room for
        all.

        Args:
            stream: Where to look.
            room: How many may be returned.
            sent_at: When the call was sent whose reply was lost.
            by_claim: It was a claim, not a read.
        """
        held = self._table.of(stream)
        seen = (0, 0) if by_claim else place_of(self._newest.get(stream, START))
        asked_at = time.monotonic()
        start = self._recovered.get(stream, "-")
        query = pack("XPENDING", stream, self._group, start, "+", _PAGE, self._consumer_id)
        rows = pending_rows(await self._call(stream, "XPENDING", query))
        # Measured after the answer: before it, a slow way there would make what we look for seem too old.
        young_ms = int((time.monotonic() - sent_at) * 1000) + 1
        lost = [row for row in rows if row.id not in held and row.idle_ms <= young_ms and place_of(row.id) > seen]
        who = (stream, self._group, self._consumer_id)
        claims = [pack("XCLAIM", *who, row.idle_ms, row.id, "RETRYCOUNT", row.deliveries) for row in lost[:room]]
        messages: list[RuntimeMessage] = []
        more = len(lost) > room or len(rows) == _PAGE
        passed = rows[-1].id if rows and len(lost) <= room else None
        for row, reply in zip(lost, await self._wire.call(claims) if claims else [], strict=False):
            if isinstance(reply, ResponseError):
                if not messages:
                    raise self._translated(reply, stream, "XCLAIM")
                more = True  # what we have is delivered; the next call meets the refusal
                break
            found: list[RuntimeMessage] = []
            self._deliver(stream, reply, found, leased_at=asked_at)
            for message in found:
                message.delivery_count = row.deliveries
            messages += found
            # Not looked at again: what fails at once would be taken for lost once more, without end.
            self._recovered[stream] = after(row.id)
        else:
            if passed is not None:
                self._recovered[stream] = after(passed)
        self._table.add(messages)
        return messages, more

    def begin_recovery(self) -> None:
        """A connection was lost: look through everything that is pending for us again."""
        self._recovered.clear()

    async def claim(self, stream: str, cursor: str, count: int) -> tuple[list[RuntimeMessage], str]:
        """Take over stale entries from ``cursor`` on. Returns them and the next cursor (``0-0``: all seen)."""
        if self._has_autoclaim:
            try:
                return await self._autoclaim(stream, cursor, count)
            except _NoSuchCommandError:
                self._has_autoclaim = False
        return await self._claim_by_hand(stream, cursor, count)

    async def lag(self, streams: Sequence[str]) -> dict[str, int | None]:
        """Return the entries not yet delivered to the group, where the server can tell (Redis 7.0+)."""
        replies = await self._wire.call([pack("XINFO", "GROUPS", stream) for stream in streams])
        return {stream: _lag(reply, self._group) for stream, reply in zip(streams, replies, strict=True)}

    async def _autoclaim(self, stream: str, cursor: str, count: int) -> tuple[list[RuntimeMessage], str]:
        sent_at = time.monotonic()
        who = (stream, self._group, self._consumer_id, self._settings.claim_idle_ms)
        (reply,) = await self._wire.call([pack("XAUTOCLAIM", *who, cursor, "COUNT", count)])
        if isinstance(reply, ResponseError):
            if str(reply).startswith(("unknown command", "ERR unknown command")):
                raise _NoSuchCommandError from reply
            raise self._translated(reply, stream, "XAUTOCLAIM")
        next_cursor, _, deleted = autoclaimed(reply)
        if deleted:
            self._report_deleted(stream, deleted)
        messages = await self._claimed(stream, reply[1], sent_at)
        return messages, next_cursor

    async def _claim_by_hand(self, stream: str, cursor: str, count: int) -> tuple[list[RuntimeMessage], str]:
        """Do the same with what servers before 6.2 have: a page of XPENDING, filtered here, then XCLAIM."""
        sent_at = time.monotonic()
        min_idle_ms = self._settings.claim_idle_ms
        start = "-" if cursor == START else cursor
        rows = pending_rows(
            await self._call(stream, "XPENDING", pack("XPENDING", stream, self._group, start, "+", _PAGE))
        )
        stale = [row.id for row in rows if row.idle_ms >= min_idle_ms][:count]
        next_cursor = START
        if len(stale) == count:
            next_cursor = after(stale[-1])
        elif len(rows) == _PAGE:
            next_cursor = after(rows[-1].id)
        if not stale:
            return [], next_cursor
        # The server checks the idle time again: two engines that saw the same page do not both get an entry.
        packed = pack("XCLAIM", stream, self._group, self._consumer_id, min_idle_ms, *stale)
        return await self._claimed(stream, await self._call(stream, "XCLAIM", packed), sent_at), next_cursor

    async def _claimed(self, stream: str, raw: Any, sent_at: float) -> list[RuntimeMessage]:
        messages: list[RuntimeMessage] = []
        self._deliver(stream, [item for item in raw if item is not None], messages, leased_at=sent_at)
        held = self._table.of(stream)
        # What we hold ourselves went stale because our heartbeat was late, or because its handler is over its time.
        # It is running: nobody has tried it again, so the claim must not count.
        ours = [held[message.id] for message in messages if message.id in held]
        if ours:
            await self._take_back_charge(stream, ours)
        messages = [message for message in messages if message.id not in held]
        messages = await self._count_deliveries(stream, messages)
        self._table.add(messages)
        return messages

    async def _take_back_charge(self, stream: str, running: list[RuntimeMessage]) -> None:
        lapsed = [message for message in running if message.lease_lost]
        idle = {False: 0, True: self._settings.claim_idle_ms}  # a lapsed one stays free for others
        calls = [
            pack("EVAL", UNCHARGE, 1, stream, self._group, self._consumer_id, idle[over], *(m.id for m in those))
            for over, those in ((True, lapsed), (False, [m for m in running if not m.lease_lost]))
            if those
        ]
        for reply in await self._wire.call(calls):
            if isinstance(reply, ResponseError):
                raise self._translated(reply, stream, "EVAL")

    async def _count_deliveries(self, stream: str, messages: list[RuntimeMessage]) -> list[RuntimeMessage]:
        """Ask how often these were delivered, and return those that are still ours.

        Only XPENDING tells; new entries need not ask. One that is not ours any more: our own
        acknowledgement, on the other connection, came between the claim and its reply.
        """
        if not messages:
            return messages
        packed = [
            pack("XPENDING", stream, self._group, message.id, message.id, 1, self._consumer_id) for message in messages
        ]
        ours = []
        for message, reply in zip(messages, await self._wire.call(packed), strict=True):
            rows = [] if isinstance(reply, ResponseError) else pending_rows(reply)
            if rows:
                message.delivery_count = rows[0].deliveries
            if rows or isinstance(reply, ResponseError):
                ours.append(message)
        return ours

    def _deliver(self, stream: str, raw: Any, into: list[RuntimeMessage], *, leased_at: float) -> None:
        """Turn raw entries into messages; what cannot be one is reported."""
        limit = self._settings.max_payload_bytes
        deleted = []
        for raw_id, fields in raw:
            if not fields:
                deleted.append(raw_id.decode())
                continue
            try:
                if len(fields) != 2:  # noqa: PLR2004 - one name, one value
                    raise CodecError(NOT_ONE_FIELD)
                if fields[0] != FIELD:
                    raise CodecError(WRONG_FIELD)
                data = decode_payload(fields[1], max_bytes=limit)
            except CodecError as error:
                self._report_malformed(stream, raw_id.decode(), error.reason)
            else:
                into.append(RuntimeMessage(stream, raw_id.decode(), data, fields[1], leased_at))
        if deleted:
            self._report_deleted(stream, deleted)

    def _report_malformed(self, stream: str, message_id: str, reason: str) -> None:
        if not self._news.is_new(stream, message_id):
            return
        observe_malformed(stream)
        self._on_error(
            MalformedMessageError(
                f"entry {message_id} of stream {printable(stream)!r} cannot be delivered: {reason}. "
                "It stays pending until somebody acknowledges or moves it",
                stream=stream,
                group=self._group,
                message_id=message_id,
                reason=reason,
            )
        )

    def _report_deleted(self, stream: str, gone: list[str]) -> None:
        ids = [message_id for message_id in gone if self._news.is_new(stream, message_id)]
        if not ids:
            return
        observe_deleted(stream, len(ids))
        shown = ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")  # noqa: PLR2004 - enough to start a search
        self._on_error(
            QueueError(
                f"{len(ids)} pending entries of stream {printable(stream)!r} were deleted before they were handled "
                f"({shown}): somebody trims the stream below what the group still needs",
                stream=stream,
                group=self._group,
            )
        )

    def _packed(self, take: Take, wait_ms: int) -> bytes:
        key = (take, wait_ms)
        packed = self._reads.get(key)
        if packed is None:
            if len(self._reads) >= 64:  # noqa: PLR2004 - room and waiting time vary without end
                self._reads.clear()
            block = ("BLOCK", wait_ms) if wait_ms else ()
            news = [">"] * len(take.streams)
            who = ("XREADGROUP", "GROUP", self._group, self._consumer_id, "COUNT", take.each)
            packed = self._reads[key] = pack(*who, *block, "STREAMS", *take.streams, *news)
        return packed

    async def _call(self, stream: str, command: str, packed: bytes) -> Any:
        (reply,) = await self._wire.call([packed])
        if isinstance(reply, ResponseError):
            raise self._translated(reply, stream, command)
        return reply

    def _translated(self, reply: ResponseError, stream: str, command: str) -> QueueError:
        error = translate(reply, stream=stream, group=self._group, command=command)
        error.__cause__ = reply
        return error


class _NoSuchCommandError(Exception):
    """The server is older than the command, or its operator has taken it away."""


def _meant(refusal: ResponseError, streams: Sequence[str]) -> str:
    """Return the stream that the server names in its refusal of a read of many; all of them if it names none."""
    return next((stream for stream in streams if f"'{stream}'" in str(refusal)), ", ".join(streams))


def _lag(reply: Any, group: str) -> int | None:
    if isinstance(reply, ResponseError):
        return None
    for raw in reply:
        row = dict(zip(raw[::2], raw[1::2], strict=True))
        if row[b"name"] == group.encode():
            lag = row.get(b"lag")
            return lag if isinstance(lag, int) else None
    return None
