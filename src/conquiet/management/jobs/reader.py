"""Reads the jobs of one stream, page by page. Changes nothing.

A page reads at most ``SCAN_LIMIT`` messages with any filter, and returns a cursor for the next. Pages of the delayed
set are by due time; a message that becomes due or is added between two pages may be seen twice or not at all.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from conquiet.core.redaction import printable
from conquiet.core.validation import require_positive, require_text
from conquiet.errors import ConfigurationError
from conquiet.management.jobs.decoding import JobDecoder
from conquiet.management.jobs.models import EVERY_JOB, LISTED, JobFilter, JobList, JobPhase, JobReport
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


class Group(NamedTuple):
    """A consumer group of the stream."""

    name: str
    pending: int
    last_delivered: str


@dataclass(slots=True)
class _Page:
    """A page under way."""

    limit: int
    where: JobFilter
    phase: JobPhase
    jobs: list[JobReport]
    scanned: int = 0

    @property
    def step(self) -> int:
        """Number of messages that the next step may read."""
        return min(_STEP, SCAN_LIMIT - self.scanned)

    def is_full(self) -> bool:
        """True if the page has reached its limit of jobs or of messages read."""
        return len(self.jobs) >= self.limit or self.step <= 0

    def add(self, job: JobReport | None) -> None:
        """Count a message that was read, and keep it if it matches."""
        self.scanned += 1
        if job is not None and job.phase is self.phase and self.where.accepts(job):
            self.jobs.append(job)


class JobReader:
    """Reads the jobs of one stream.

    Args:
        client: A client without retries. The caller closes it.
        stream: The stream.
        group: The consumer group of the jobs. May be left out if the stream has one group.
    """

    def __init__(self, client: AsyncClient, stream: str, group: str | None = None) -> None:
        self._client = client
        self.keys: Keys = keys_of(stream)
        self.given = None if group is None else require_text("group", group)
        self.dead_letters = DeadLetters(client, stream)
        self.order = KeyOrder(client, stream)

    # ------------------------------------------------------------ pages

    async def list(
        self,
        phase: JobPhase,
        where: JobFilter = EVERY_JOB,
        *,
        cursor: str | None = None,
        limit: int = 100,
        with_data: bool = False,
    ) -> JobList:
        """Return up to ``limit`` matching jobs of a phase, and the cursor to continue from.

        Raises:
            ConfigurationError: The phase cannot be listed, the cursor is of another list, or the stream has several
                groups and none was named.
            QueueError: The server refused or did not reply.
        """
        if phase not in LISTED:
            raise ConfigurationError(f"jobs can be listed that are {', '.join(LISTED)}")
        page = _Page(require_positive("limit", limit), where, phase, [])
        readers: dict[JobPhase, Callable[[_Page, JobDecoder, str | None, int], Awaitable[str | None]]] = {
            JobPhase.WAITING: self._waiting,
            JobPhase.BEHIND: self._behind,
            JobPhase.RUNNING: self._running,
            JobPhase.DELAYED: self._delayed,
            JobPhase.RETRYING: self._delayed,
            JobPhase.PARKED: self._parked,
            JobPhase.DEAD: self._dead_page,
        }
        group = await self.group(required=phase in {JobPhase.WAITING, JobPhase.RUNNING})
        decoder = JobDecoder(self.keys.stream, "" if group is None else group.name, with_data=with_data)
        following = await readers[phase](page, decoder, cursor, await self.now_ms())
        return JobList(tuple(page.jobs), following, page.scanned)

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

    async def _waiting(self, page: _Page, decoder: JobDecoder, cursor: str | None, now_ms: int) -> str | None:
        group = await self.group()
        last = "0-0" if group is None else group.last_delivered
        position = last if cursor is None else max(_entry_id(cursor), last, key=parse_id)
        while not page.is_full():
            count = page.step
            entries = await self.send("XRANGE", self.keys.stream, f"({position}", "+", "COUNT", count)
            for entry_id, fields in entries:
                position = str(entry_id, "ascii")
                page.add(decoder.entry(entry_id, fields, now_ms))
                if page.is_full():
                    return position
            if len(entries) < count:
                return None
        return position

    async def _running(self, page: _Page, decoder: JobDecoder, cursor: str | None, now_ms: int) -> str | None:
        group = await self.group()
        if group is None:
            return None
        position = "-" if cursor is None else f"({_entry_id(cursor)}"
        while not page.is_full():
            count = page.step
            rows = await self.call("job_running", (self.keys.stream,), (group.name, position, count))
            for row in rows:
                position = f"({row[0].decode()}"
                page.add(decoder.running(row, now_ms))
                if page.is_full():
                    return position[1:]
            if len(rows) < count:
                return None
        return position[1:]

    async def _delayed(self, page: _Page, decoder: JobDecoder, cursor: str | None, now_ms: int) -> str | None:
        score, skip = ("-inf", 0) if cursor is None else _position(cursor)
        while not page.is_full():
            count = page.step
            part = ("LIMIT", skip, count)
            pairs = scored(await self.send("ZRANGEBYSCORE", self.keys.delayed, score, "+inf", "WITHSCORES", *part))
            for raw, due in pairs:
                at = due.decode()
                score, skip = (at, skip + 1) if at == score else (at, 1)
                page.add(decoder.delayed(raw, due, now_ms))
                if page.is_full():
                    return f"{score}~{skip}"
            if len(pairs) < count:
                return None
        return f"{score}~{skip}"

    async def _parked(self, page: _Page, decoder: JobDecoder, cursor: str | None, now_ms: int) -> str | None:
        events = [event.decode(errors="backslashreplace") for event in await self.parked_events()]
        number, place = (0, 0) if cursor is None else _two_numbers(cursor)
        while number < len(events):
            if page.where.event not in {None, events[number]}:
                number, place = number + 1, 0
                continue
            count = page.step
            parked = self.keys.parked_event(events[number])
            members = await self.send("LRANGE", parked, place, place + count - 1)
            for raw in members:
                place += 1
                page.add(decoder.parked(raw, now_ms))
                if page.is_full():
                    return f"{number}~{place}"
            if len(members) < count:
                number, place = number + 1, 0
        return None

    async def _behind(self, page: _Page, decoder: JobDecoder, cursor: str | None, now_ms: int) -> str | None:
        number, place = (0, 0) if cursor is None else _two_numbers(cursor)
        while not page.is_full():
            count = page.step
            names = (self.keys.waiting_keys, self.keys.order)
            members = await self.call("job_behind", names, (number, place, count))
            if members is None:
                return None
            for raw in members:
                place += 1
                page.add(decoder.behind(raw, now_ms))
                if page.is_full():
                    return f"{number}~{place}"
            if len(members) < count:
                number, place = number + 1, 0
        return f"{number}~{place}"

    async def parked_events(self) -> Sequence[bytes]:
        """Return the events that have parked messages."""
        return sorted(await self.send("SMEMBERS", self.keys.parked))

    async def _dead_page(self, page: _Page, decoder: JobDecoder, cursor: str | None, now_ms: int) -> str | None:
        position = None if cursor is None else _entry_id(cursor)
        while not page.is_full():
            found = await self.dead_letters.list(cursor=position, limit=page.step)
            for dead in found.items:
                position = dead.id
                page.add(decoder.dead(dead, now_ms))
                if page.is_full():
                    return position
            if found.cursor is None:
                return None
        return position


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
