"""Reads the jobs of one stream, page by page. Changes nothing.

A page reads at most ``SCAN_LIMIT`` messages with any filter, and returns a cursor for the next. Pages of the delayed
set are by due time; a message that becomes due or is added between two pages may be seen twice or not at all.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from conquiet.core.redaction import printable
from conquiet.core.validation import require_positive, require_text
from conquiet.errors import ConfigurationError
from conquiet.management.jobs.decoding import JobDecoder
from conquiet.management.jobs.models import EVERY_JOB, LISTED, JobFilter, JobList, JobPhase, JobReport
from conquiet.processor.dead_letter_id import dead_id_of, parse_dead_id
from conquiet.processor.dead_letters import DeadLetters
from conquiet.processor.key_order import KeyOrder
from conquiet.processor.keys import Keys, keys_of
from conquiet.redis_transport.client import AsyncClient
from conquiet.redis_transport.client_commands import command
from conquiet.redis_transport.commands import Word
from conquiet.redis_transport.ids import is_entry_id, parse_id
from conquiet.redis_transport.replies import scored, server_ms
from conquiet.redis_transport.scripts import Arg, load_script

SCAN_LIMIT = 2_000
"""Most messages that one page reads."""

_STEP = 200
_BAD_CURSOR = "this cursor is not one of this list: give the cursor of the page before, for the same state"

_Jobs = AsyncGenerator[tuple[str, JobReport | None], None]
"""Messages of one place, each with the cursor behind it; None for a message of another group."""


class Group(NamedTuple):
    """A consumer group of the stream."""

    name: str
    pending: int
    last_delivered: str


class _Walk(NamedTuple):
    """Parameters of a walk through the jobs of one place."""

    decoder: JobDecoder
    group: Group | None
    event: str | None
    cursor: str | None
    now_ms: int


class JobReader:
    """Reads the jobs of one stream.

    Args:
        client: A client without retries. The caller closes it.
        stream: The stream.
        group: The consumer group of the jobs. May be left out if the stream has one group.
        partition: Number of the partition that the stream is.
    """

    def __init__(self, client: AsyncClient, stream: str, group: str | None = None, *, partition: int = 0) -> None:
        self._client = client
        self.keys: Keys = keys_of(stream)
        self.given = None if group is None else require_text("group", group)
        self.partition = partition
        self.dead_letters = DeadLetters(client, stream, partition=partition)
        self.order = KeyOrder(client, stream)

    async def list(
        self,
        phase: JobPhase,
        where: JobFilter = EVERY_JOB,
        *,
        cursor: str | None = None,
        limit: int = 100,
        with_data: bool = False,
    ) -> JobList:
        """Return up to ``limit`` matching jobs of a phase, and the cursor to continue from."""
        if phase not in LISTED:
            raise ConfigurationError(f"jobs can be listed that are {', '.join(LISTED)}")
        require_positive("limit", limit)
        group = await self.group(required=phase in {JobPhase.WAITING, JobPhase.RUNNING})
        decoder = self.decoder("" if group is None else group.name, with_data=with_data)
        walk = _Walk(decoder, group, where.event, cursor, await self.now_ms())
        jobs: list[JobReport] = []
        scanned = 0
        async with aclosing(self._place(phase)(walk)) as messages:
            async for position, job in messages:
                scanned += 1
                if job is not None and job.phase is phase and where.accepts(job):
                    jobs.append(job)
                if len(jobs) >= limit or scanned >= SCAN_LIMIT:
                    return JobList(tuple(jobs), position, scanned)
        return JobList(tuple(jobs), None, scanned)

    async def groups(self) -> Sequence[Group]:
        """Return the consumer groups of the stream."""
        reply = await self.call("job_groups", (self.keys.stream,), ())
        return [Group(name.decode(errors="backslashreplace"), pending, last.decode()) for name, pending, last in reply]

    async def group(self, *, required: bool = False) -> Group | None:
        """Return the group of the jobs; None if the stream has no group, or several and none was named.

        Raises:
            ConfigurationError: The named group does not exist; or ``required``, and there are several.
        """
        groups = await self.groups()
        names = ", ".join(printable(group.name) for group in groups)
        stream = printable(self.keys.stream)
        if self.given is not None:
            for group in groups:
                if group.name == self.given:
                    return group
            raise ConfigurationError(
                f"stream {stream!r} has no group {printable(self.given)!r}; it has {names or 'none'}"
            )
        if len(groups) > 1 and required:
            raise ConfigurationError(f"stream {stream!r} has several groups; name one of them: {names}")
        return groups[0] if len(groups) == 1 else None

    def decoder(self, group: str, *, with_data: bool = False) -> JobDecoder:
        """Return a decoder for the messages of a group; of every group if it is empty."""
        return JobDecoder(self.keys.stream, group, with_data=with_data)

    async def parked_events(self) -> Sequence[bytes]:
        """Return the events that have parked messages."""
        return sorted(await self.send("SMEMBERS", self.keys.parked))

    async def now_ms(self) -> int:
        """Return the server's clock."""
        return server_ms(await self.send("TIME"))

    async def send(self, *words: Word) -> Any:
        """Send one command."""
        return await command(self._client, *words, stream=self.keys.stream)

    async def call(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run one of this package's scripts."""
        script = load_script("conquiet.management", name, name.replace("_", " "))
        return await script.call(self._client, keys, args, stream=self.keys.stream)

    # ------------------------------------------------------------ places

    def _place(self, phase: JobPhase) -> Callable[[_Walk], _Jobs]:
        return {
            JobPhase.WAITING: self._waiting,
            JobPhase.BEHIND: self._behind,
            JobPhase.RUNNING: self._running,
            JobPhase.DELAYED: self._delayed,
            JobPhase.RETRYING: self._delayed,
            JobPhase.PARKED: self._parked,
            JobPhase.DEAD: self._dead,
        }[phase]

    async def _waiting(self, walk: _Walk) -> _Jobs:
        last = "0-0" if walk.group is None else walk.group.last_delivered
        position = last if walk.cursor is None else max(_entry_id(walk.cursor), last, key=parse_id)
        while True:
            entries = await self.send("XRANGE", self.keys.stream, f"({position}", "+", "COUNT", _STEP)
            for entry_id, fields in entries:
                position = str(entry_id, "ascii")
                yield position, walk.decoder.entry(entry_id, fields, walk.now_ms)
            if len(entries) < _STEP:
                return

    async def _running(self, walk: _Walk) -> _Jobs:
        if walk.group is None:
            return
        start = "-" if walk.cursor is None else f"({_entry_id(walk.cursor)}"
        while True:
            rows = await self.call("job_running", (self.keys.stream,), (walk.group.name, start, _STEP))
            for row in rows:
                position = row[0].decode()
                start = f"({position}"
                yield position, walk.decoder.running(row, walk.now_ms)
            if len(rows) < _STEP:
                return

    async def _delayed(self, walk: _Walk) -> _Jobs:
        score, skip = ("-inf", 0) if walk.cursor is None else _position(walk.cursor)
        while True:
            words = (score, "+inf", "WITHSCORES", "LIMIT", skip, _STEP)
            pairs = scored(await self.send("ZRANGEBYSCORE", self.keys.delayed, *words))
            for raw, due in pairs:
                at = due.decode()
                score, skip = (at, skip + 1) if at == score else (at, 1)
                yield f"{score}~{skip}", walk.decoder.delayed(raw, due, walk.now_ms)
            if len(pairs) < _STEP:
                return

    async def _parked(self, walk: _Walk) -> _Jobs:
        events = [event.decode(errors="backslashreplace") for event in await self.parked_events()]
        number, place = (0, 0) if walk.cursor is None else _two_numbers(walk.cursor)
        left = SCAN_LIMIT
        while number < len(events):
            members: Sequence[bytes] = ()
            count = min(_STEP, left)
            if walk.event in {None, events[number]}:
                parked = self.keys.parked_event(events[number])
                members = await self.send("LRANGE", parked, place, place + count - 1)
            for raw in members:
                place += 1
                yield f"{number}~{place}", walk.decoder.parked(raw, walk.now_ms, event=events[number])
            left -= len(members)
            if len(members) < count:
                number, place = number + 1, 0

    async def _behind(self, walk: _Walk) -> _Jobs:
        number, place = (0, 0) if walk.cursor is None else _two_numbers(walk.cursor)
        names = (self.keys.waiting_keys, self.keys.order)
        left = SCAN_LIMIT
        while True:
            count = min(_STEP, left)
            members = await self.call("job_behind", names, (number, place, count))
            if members is None:
                return
            for raw in members:
                place += 1
                yield f"{number}~{place}", walk.decoder.behind(raw, walk.now_ms)
            left -= len(members)
            if len(members) < count:
                number, place = number + 1, 0

    async def _dead(self, walk: _Walk) -> _Jobs:
        # The cursor is the id of an entry, as in the other phases: the list of all partitions adds the partition to it.
        position = None if walk.cursor is None else dead_id_of(_entry_id(walk.cursor), self.partition)
        while True:
            found = await self.dead_letters.list(cursor=position, limit=_STEP)
            for dead in found.items:
                yield parse_dead_id(dead.id).entry_id, walk.decoder.dead(dead, walk.now_ms)
            position = found.cursor
            if position is None:
                return


def _entry_id(cursor: str) -> str:
    if not is_entry_id(cursor):
        raise ConfigurationError(_BAD_CURSOR)
    return cursor


def _position(cursor: str) -> tuple[str, int]:
    score, tilde, skip = cursor.partition("~")
    try:
        float(score)
    except ValueError:
        raise ConfigurationError(_BAD_CURSOR) from None
    if not tilde or not skip.isdigit():
        raise ConfigurationError(_BAD_CURSOR)
    return score, int(skip)


def _two_numbers(cursor: str) -> tuple[int, int]:
    number, _, place = cursor.partition("~")
    if not (number.isdigit() and place.isdigit()):
        raise ConfigurationError(_BAD_CURSOR)
    return int(number), int(place)
