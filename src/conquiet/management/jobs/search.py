"""Find one job by its id. The server searches messages in steps, up to a limit. Changes nothing."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from conquiet.core.json_codec import encode_json
from conquiet.core.validation import require_positive, require_text
from conquiet.management.jobs.decoding import JobDecoder
from conquiet.management.jobs.models import JobReport
from conquiet.management.jobs.reader import Group, JobReader
from conquiet.redis_transport.ids import is_entry_id, parse_id

SEARCH_LIMIT = 200_000
"""Most messages that a search reads in each place."""

_STEP = 200
_STEP_ON_SERVER = 500


class Search:
    """A search for one job.

    Attributes:
        id: The job's id.
        text: The id as encoded in a stored message.
        found: The job at each place where it was found.
        tracebacks: Tracebacks of its dead letters.
        scanned: Messages that were read.
        complete: False if the limit ended the search of a place.
    """

    def __init__(self, job_id: str, limit: int, text: bytes) -> None:
        self.id = job_id
        self.text = text
        self.found: list[JobReport] = []
        self.tracebacks: list[str] = []
        self.scanned = 0
        self.complete = True
        self._limit = limit
        self._here = 0

    def begin(self) -> None:
        """Start the search of another place."""
        self._here = 0

    def seen(self, count: int) -> None:
        """Count messages that were read."""
        self._here += count
        self.scanned += count

    @property
    def may_go_on(self) -> bool:
        """False once the limit of this place is reached."""
        if self._here >= self._limit:
            self.complete = False
            return False
        return True

    def offer(self, job: JobReport | None) -> None:
        """Add a job if it has the wanted id."""
        if job is not None and job.id == self.id and job not in self.found:
            self.found.append(job)


class JobFinder:
    """Finds jobs of one stream.

    Args:
        reader: Reads the stream.
    """

    def __init__(self, reader: JobReader) -> None:
        self._reader = reader

    async def find(self, job_id: str, *, search_limit: int = SEARCH_LIMIT, with_data: bool = False) -> Search:
        """Search a job by its id in every place, at most ``search_limit`` messages in each."""
        require_text("id", job_id)
        require_positive("search_limit", search_limit)
        given = await self._reader.group()
        # Without a named group the jobs of every group are searched.
        groups = await self._reader.groups() if given is None else [given]
        now_ms = await self._reader.now_ms()
        search = Search(job_id, search_limit, encode_json(job_id))
        for group in groups:
            await self._search_running(
                search, JobDecoder(self._reader.keys.stream, group.name, with_data=with_data), group, now_ms
            )
        decoder = JobDecoder(
            self._reader.keys.stream, "" if self._reader.given is None else self._reader.given, with_data=with_data
        )
        await self._search_delayed(search, decoder, now_ms)
        await self._search_parked(search, decoder, now_ms)
        await self._search_behind(search, decoder, now_ms)
        await self._search_stream(search, decoder, groups, now_ms)
        await self._search_dead(search, decoder, now_ms)
        return search

    async def _search_running(self, search: Search, decoder: JobDecoder, group: Group, now_ms: int) -> None:
        position = "-"
        search.begin()
        while search.may_go_on:
            rows = await self._reader.call("job_running", (self._reader.keys.stream,), (group.name, position, _STEP))
            for row in rows:
                search.offer(decoder.running(row, now_ms))
            search.seen(len(rows))
            if len(rows) < _STEP:
                return
            position = f"({rows[-1][0].decode()}"

    async def _search_delayed(self, search: Search, decoder: JobDecoder, now_ms: int) -> None:
        cursor = 0
        search.begin()
        while search.may_go_on:
            following, seen, pairs = await self._reader.call(
                "job_search_delayed", (self._reader.keys.delayed,), (cursor, _STEP_ON_SERVER, search.text)
            )
            for raw, due in zip(pairs[::2], pairs[1::2], strict=True):
                search.offer(decoder.delayed(raw, due, now_ms))
            search.seen(seen)
            cursor = int(following)
            if cursor == 0:
                return

    async def _search_parked(self, search: Search, decoder: JobDecoder, now_ms: int) -> None:
        search.begin()
        for event in await self._reader.parked_events():
            name = self._reader.keys.parked_event(event.decode(errors="backslashreplace"))
            place = 0
            while search.may_go_on:
                seen, members = await self._reader.call(
                    "job_search_parked", (name,), (place, _STEP_ON_SERVER, search.text)
                )
                for raw in members:
                    search.offer(decoder.parked(raw, now_ms))
                search.seen(seen)
                place += seen
                if seen < _STEP_ON_SERVER:
                    break

    async def _search_behind(self, search: Search, decoder: JobDecoder, now_ms: int) -> None:
        names = (self._reader.keys.waiting_keys, self._reader.keys.order)
        number, place = 0, 0
        search.begin()
        while search.may_go_on:
            reply = await self._reader.call("job_search_behind", names, (number, place, _STEP_ON_SERVER, search.text))
            if reply is None:
                return
            seen, members = reply
            for raw in members:
                search.offer(decoder.behind(raw, now_ms))
            search.seen(seen)
            number, place = (number, place + seen) if seen == _STEP_ON_SERVER else (number + 1, 0)

    async def _search_stream(self, search: Search, decoder: JobDecoder, groups: Sequence[Group], now_ms: int) -> None:
        """Search the undelivered entries. An id that the server generated is read directly."""
        first = min((group.last_delivered for group in groups), key=parse_id, default="0-0")
        if is_entry_id(search.id):
            for entry_id, fields in await self._reader.send("XRANGE", self._reader.keys.stream, search.id, search.id):
                if parse_id(entry_id.decode()) > parse_id(first):
                    search.offer(decoder.entry(entry_id, fields, now_ms))
        async for entry_id, fields in self._matches(search, self._reader.keys.stream, first):
            search.offer(decoder.entry(entry_id, fields, now_ms))

    async def _search_dead(self, search: Search, decoder: JobDecoder, now_ms: int) -> None:
        async for entry_id, _ in self._matches(search, self._reader.keys.dead, "0-0"):
            dead = await self._reader.dead_letters.show(entry_id.decode())
            if dead is not None and dead.record.id == search.id:
                search.tracebacks.append(dead.record.traceback)
                search.offer(decoder.dead(dead, now_ms))

    async def _matches(self, search: Search, key: str, after: str) -> AsyncIterator[tuple[bytes, Any]]:
        position = after
        search.begin()
        while search.may_go_on:
            seen, last, found = await self._reader.call(
                "job_search", (key,), (f"({position}", _STEP_ON_SERVER, search.text)
            )
            for entry_id, fields in found:
                yield entry_id, fields
            search.seen(seen)
            if seen < _STEP_ON_SERVER:
                return
            position = last.decode()
