"""Inspect, replay and discard the dead letters of a stream.

All operations work page by page, so a million dead letters need no more memory than a hundred. A replay
removes the dead letter and returns the message to the stream in one step: of two concurrent replays only one
succeeds, and after a crash each message is either dead or replayed.

See docs/decisions/0018.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from conquiet.core.replay_report import ReplayReport
from conquiet.core.throttle import Throttle
from conquiet.core.validation import (
    require_positive,
    require_seconds,
    require_selection,
    require_string_or_none,
    require_text,
)
from conquiet.errors import ConfigurationError
from conquiet.metrics.registry import PROCESSOR_DEAD_LETTERS_EXPIRED_TOTAL
from conquiet.metrics.safety import count
from conquiet.processor.dead_letter_id import DeadLetterId, dead_id_of, parse_dead_id
from conquiet.processor.dead_letter_record import DeadRecord, decode_record
from conquiet.processor.delayed import Poll
from conquiet.processor.envelope import encode_raw, replayed
from conquiet.processor.keys import Keys, keys_of
from conquiet.processor.partitions import partition_in
from conquiet.processor.policy import milliseconds, require_count
from conquiet.processor.scripts import Arg, script
from conquiet.processor.settings import ProcessorSettings
from conquiet.redis_transport.client import AsyncClient, require_raw_client
from conquiet.redis_transport.client_commands import command
from conquiet.redis_transport.commands import Word

_PAGE = 200
_CHUNK = 100
_GONE, _TAKEN, _NO_GROUP = 0, 1, 2


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """One dead letter: its id, and its record.

    The id is the one of its entry in the dead-letter stream; in partition 3 of a stream it ends with ``.3``.
    """

    id: str
    record: DeadRecord

    @property
    def died_ms(self) -> int:
        """When it was written, by the server's clock."""
        return parse_dead_id(self.id).milliseconds


@dataclass(frozen=True, slots=True)
class DeadPage:
    """A page of dead letters, oldest first, and the next cursor. None means that this is the last page."""

    items: tuple[DeadMessage, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class DeadCause:
    """Dead letters with the same event and error type (or reason, if there was no error)."""

    event: str
    error_type: str
    count: int
    first_ms: int
    last_ms: int
    example_id: str


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Selects dead letters. None matches every value.

    Attributes:
        id: Id of the dead letter.
        event: Event of the message.
        error_type: Class name, qualified as ``causes()`` shows it, or its last parts. A built-in class may be prefixed
            with ``builtins.``.
        reason: A value of ``Reason``.
        group: Consumer group that dead-lettered it.
        before_ms: Dead-lettered before this time.
        since_ms: Dead-lettered at or after this time.
    """

    id: str | None = None
    event: str | None = None
    error_type: str | None = None
    reason: str | None = None
    group: str | None = None
    before_ms: int | None = None
    since_ms: int | None = None

    def __post_init__(self) -> None:
        if self.id is not None:
            parse_dead_id(self.id)
        for name in ("event", "error_type", "reason", "group"):
            require_string_or_none(name, getattr(self, name))
        for name in ("before_ms", "since_ms"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ConfigurationError(f"{name} must be milliseconds since the epoch, got a {type(value).__name__}")

    def accepts(self, dead: DeadMessage) -> bool:
        """Return True if the dead letter matches."""
        record = dead.record
        return (
            (self.id is None or self.id == dead.id)
            and (self.event is None or self.event == record.event)
            and (self.error_type is None or _is_cause(self.error_type, _cause(record)))
            and (self.reason is None or self.reason == record.reason)
            and (self.group is None or self.group == record.group)
            and (self.before_ms is None or dead.died_ms < self.before_ms)
            and (self.since_ms is None or dead.died_ms >= self.since_ms)
        )


def _is_cause(wanted: str, cause: str) -> bool:
    wanted = wanted.removeprefix("builtins.")
    return cause == wanted or cause.endswith(f".{wanted}")


EVERYTHING = DeadFilter()


class DeadLetters:
    """The dead letters of one stream.

    Args:
        client: A client without retries. The caller closes it.
        stream: The stream of the messages.
        partition: Number of the partition that the stream is; the ids of its dead letters name it. Ids of other
            partitions do not exist here.

    Attributes:
        keys: Names of the Redis keys.
    """

    def __init__(self, client: AsyncClient, stream: str, *, partition: int = 0) -> None:
        require_raw_client(client)
        self._client = client
        self.keys = keys_of(stream)
        self._partition = partition

    async def list(self, *, cursor: str | None = None, limit: int = 100, where: DeadFilter = EVERYTHING) -> DeadPage:
        """Return up to ``limit`` dead letters after ``cursor``, oldest first.

        With a filter, a page may hold fewer items, even none, and still have a cursor.
        """
        require_positive("limit", limit)
        require_selection(where, DeadFilter)
        items, following = await self._page(cursor, limit)
        return DeadPage(tuple(item for item in items if where.accepts(item)), following)

    async def show(self, dead_id: str) -> DeadMessage | None:
        """Return one dead letter with its record and message. None if it does not exist."""
        wanted = parse_dead_id(dead_id)
        if not self._has(wanted):
            return None
        found = await self._send("XRANGE", self.keys.dead, wanted.entry_id, wanted.entry_id)
        return read_dead_message(*found[0], partition=self._partition) if found else None

    async def causes(self) -> Sequence[DeadCause]:
        """Return the causes, most frequent first. Reads all dead letters, page by page."""
        counts: Counter[tuple[str, str]] = Counter()
        first: dict[tuple[str, str], tuple[int, str]] = {}  # not the record, which holds the whole message
        last: dict[tuple[str, str], int] = {}
        async for dead in self._all(EVERYTHING):
            key = (dead.record.event, _cause(dead.record))
            counts[key] += 1
            first.setdefault(key, (dead.died_ms, dead.id))
            last[key] = dead.died_ms
        return [
            DeadCause(*key, count, first_ms=first[key][0], last_ms=last[key], example_id=first[key][1])
            for key, count in counts.most_common()
        ]

    async def replay(
        self,
        where: DeadFilter,
        *,
        dry_run: bool = False,
        rate_per_s: float | None = None,
        limit: int | None = None,
        to: str | None = None,
        on_progress: Callable[[ReplayReport], None] | None = None,
    ) -> ReplayReport:
        """Return dead letters to the end of their stream, with a fresh set of attempts.

        Messages that are dead-lettered during the replay are not replayed.

        Args:
            where: Selects dead letters. ``DeadFilter()`` selects all.
            dry_run: Only count.
            rate_per_s: Maximum number of replayed messages per second.
            limit: Maximum number of replayed messages.
            to: The consumer group to replay for, instead of the group that dead-lettered the message.
            on_progress: Called with the report so far after every step.
        """
        require_selection(where, DeadFilter, limit=limit, on_progress=on_progress)
        throttle = Throttle(rate_per_s)
        if to is not None:
            require_text("to", to)
        run = _Replay(self._client, self.keys, dry_run=dry_run, throttle=throttle, group=to, on_progress=on_progress)
        # Ten steps per second are smooth enough, and each is small enough not to block the server.
        size = _CHUNK if rate_per_s is None else max(1, int(min(_CHUNK, rate_per_s / 10)))
        chunk: list[DeadMessage] = []
        async for dead in self._all(where):
            if limit is not None and run.taken + len(chunk) >= limit:
                await run.step(chunk)
                chunk = []
                if run.taken >= limit:
                    break
            if not dead.record.replayable:
                run.unreplayable += 1
                continue
            chunk.append(dead)
            if len(chunk) == size:
                await run.step(chunk)
                chunk = []
        await run.step(chunk)
        return run.report()

    async def discard(self, where: DeadFilter, *, dry_run: bool = False, limit: int | None = None) -> int:
        """Delete dead letters permanently, the oldest ``limit`` of them. Return how many were (or would be) deleted."""
        require_selection(where, DeadFilter, limit=limit)
        deleted = 0
        ids: list[str] = []
        async for dead in self._all(where):
            if limit is not None and deleted + len(ids) >= limit:
                break
            ids.append(dead.id)
            if len(ids) == _CHUNK:
                deleted += _CHUNK if dry_run else await self.discard_ids(ids)
                ids = []
        return deleted + (len(ids) if dry_run else await self.discard_ids(ids))

    async def discard_ids(self, ids: Sequence[str]) -> int:
        """Delete these dead letters permanently, in one step. Return how many existed."""
        if isinstance(ids, str):
            raise ConfigurationError("ids must be a list of dead letters' ids, got a single one")
        entries = [wanted.entry_id for wanted in map(parse_dead_id, ids) if self._has(wanted)]
        return int(await self._send("XDEL", self.keys.dead, *entries)) if entries else 0

    async def trim(self, *, max_count: int | None = None, max_age_s: float | None = None) -> int:
        """Apply a retention now. Return how many dead letters were deleted."""
        most = 0 if max_count is None else require_count("max_count", max_count)
        age_ms = 0 if max_age_s is None else max(1, milliseconds(require_seconds("max_age_s", max_age_s)))
        fallen: int = await script("trim").call(
            self._client, (self.keys.dead,), (most, age_ms), stream=self.keys.stream
        )
        count(PROCESSOR_DEAD_LETTERS_EXPIRED_TOTAL, self.keys.stream, n=fallen)
        return fallen

    async def count(self) -> int:
        """Return the number of dead letters."""
        return int(await self._send("XLEN", self.keys.dead))

    def _has(self, wanted: DeadLetterId) -> bool:
        """Return whether the id is one of this partition, which is known by its number or by the name of the stream."""
        return wanted.partition in {self._partition, partition_in(self.keys.stream)}

    async def _all(self, where: DeadFilter) -> AsyncIterator[DeadMessage]:
        """Iterate over the current dead letters, page by page."""
        if where.id is not None:
            dead = await self.show(where.id)
            if dead is not None and replace(where, id=None).accepts(dead):
                yield dead
            return
        # End at the newest id, not at the current time: after a failover or a clock step, ids may be in the future.
        newest = await self._send("XREVRANGE", self.keys.dead, "+", "-", "COUNT", 1)
        if not newest:
            return
        end = parse_dead_id(dead_id_of(newest[0][0].decode(), self._partition))
        cursor: str | None = None
        while True:
            items, cursor = await self._page(cursor, _PAGE)
            for item in items:
                if parse_dead_id(item.id) > end:
                    return
                if where.accepts(item):
                    yield item
            if cursor is None:
                return

    async def _page(self, cursor: str | None, limit: int) -> tuple[Sequence[DeadMessage], str | None]:
        start = "-" if cursor is None else parse_dead_id(cursor).start_after(self._partition)
        reply = await self._send("XRANGE", self.keys.dead, start, "+", "COUNT", limit)
        items = [read_dead_message(raw_id, fields, partition=self._partition) for raw_id, fields in reply]
        return items, items[-1].id if len(items) == limit else None

    async def _send(self, *words: Word) -> Any:
        return await command(self._client, *words, stream=self.keys.stream)


async def apply_retention(client: AsyncClient, settings: ProcessorSettings, keys: Keys, found: Poll) -> None:
    """Delete dead letters beyond the maximum age or number, if a poll found any.

    Needed because a dead letter is otherwise trimmed only when another is written.
    """
    most, age_s = settings.dead_letters_max, settings.dead_letters_max_age_s
    too_many = most is not None and found.dead > most
    age_ms = 0 if found.oldest_dead_ms is None else found.now_ms - found.oldest_dead_ms
    if too_many or (age_s is not None and age_ms > age_s * 1000):
        await DeadLetters(client, keys.stream).trim(max_count=most, max_age_s=age_s)


@dataclass(slots=True)
class _Replay:
    """The rate and counts of one replay."""

    client: AsyncClient
    keys: Keys
    dry_run: bool
    throttle: Throttle
    group: str | None
    on_progress: Callable[[ReplayReport], None] | None
    taken: int = 0
    gone: int = 0
    unreplayable: int = 0

    async def step(self, chunk: "list[DeadMessage]") -> None:
        if not chunk:
            return
        if not self.dry_run:
            await asyncio.sleep(self.throttle.reserve(len(chunk)))
        args: list[Arg] = ["1" if self.dry_run else "0"]
        for dead in chunk:
            group = self.group or dead.record.group
            # Any nesting depth is accepted: the payload was read one level deeper, inside its record.
            payload = encode_raw(replayed(dead.record.payload or {}, group=group))
            args += (parse_dead_id(dead.id).entry_id, group, payload)
        names = (self.keys.stream, self.keys.dead, self.keys.order)
        answers = await script("replay").call(self.client, names, args, stream=self.keys.stream)
        self.taken += answers.count(_TAKEN)
        self.gone += answers.count(_GONE)
        self.unreplayable += answers.count(_NO_GROUP)
        if self.on_progress is not None and not self.dry_run:
            self.on_progress(self.report())

    def report(self) -> ReplayReport:
        matched = self.taken + self.gone + self.unreplayable
        return ReplayReport(matched, self.taken, self.gone, self.unreplayable, self.dry_run)


def _cause(record: DeadRecord) -> str:
    return record.error_type or record.reason


def read_dead_message(raw_id: bytes, fields: "list[bytes]", *, partition: int = 0) -> DeadMessage:
    """Decode an entry of the dead-letter stream of a partition."""
    entry_id = raw_id.decode()
    try:
        record = decode_record(fields[1])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Written by another program, or nested too deeply to be decoded.
        # It is shown as unreadable and can be discarded.
        record = DeadRecord(reason="unreadable", id=entry_id, entry_id=entry_id, group="")
    return DeadMessage(dead_id_of(entry_id, partition), record)
