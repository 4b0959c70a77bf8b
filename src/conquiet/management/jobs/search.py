"""Find one job by its id. The server searches messages in steps, up to a limit. Changes nothing."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

from conquiet.core.json_codec import encode_json
from conquiet.core.validation import require_positive, require_text
from conquiet.management.jobs.models import JobReport
from conquiet.management.jobs.reader import Group, JobReader
from conquiet.redis_transport.ids import is_entry_id, parse_id

SEARCH_LIMIT = 200_000
"""Most messages that a search reads in each place."""

_STEP = 200
_STEP_ON_SERVER = 500


class Search:
    """A search for one job of a stream, in every place.

    Args:
        reader: Reads the stream.
        job_id: The job's id.
        limit: Most messages that are read in each place.
        with_data: Include the data of the job.

    Attributes:
        id: The job's id.
        found: The job at each place where it was found.
        tracebacks: Tracebacks of its dead letters.
        scanned: Messages that were read.
        complete: False if the limit ended the search of a place.
    """

    def __init__(self, reader: JobReader, job_id: str, *, limit: int = SEARCH_LIMIT, with_data: bool = False) -> None:
        self.id = require_text("id", job_id)
        self.found: list[JobReport] = []
        self.tracebacks: list[str] = []
        self.scanned = 0
        self.complete = True
        self._reader = reader
        self._keys = reader.keys
        self._text = encode_json(job_id)  # the id as encoded in a stored message
        self._limit = require_positive("search_limit", limit)
        self._with_data = with_data
        self._decoder = reader.decoder(reader.given or "", with_data=with_data)
        self._now_ms = 0
        self._here = 0

    async def run(self) -> Self:
        """Search every place and return this search."""
        given = await self._reader.group()
        # Without a named group the jobs of every group are searched.
        groups = await self._reader.groups() if given is None else [given]
        self._now_ms = await self._reader.now_ms()
        for group in groups:
            await self._search_running(group)
        await self._search_delayed()
        await self._search_parked()
        await self._search_behind()
        await self._search_stream(groups)
        await self._search_dead()
        return self

    async def _search_running(self, group: Group) -> None:
        decoder = self._reader.decoder(group.name, with_data=self._with_data)
        position = "-"
        self._here = 0
        while self._may_go_on:
            rows = await self._reader.call("job_running", (self._keys.stream,), (group.name, position, _STEP))
            self._read(len(rows), [decoder.running(row, self._now_ms) for row in rows])
            if len(rows) < _STEP:
                return
            position = f"({rows[-1][0].decode()}"

    async def _search_delayed(self) -> None:
        cursor = 0
        self._here = 0
        while self._may_go_on:
            following, seen, pairs = await self._call("job_search_delayed", (self._keys.delayed,), cursor)
            jobs = zip(pairs[::2], pairs[1::2], strict=True)
            self._read(seen, [self._decoder.delayed(raw, due, self._now_ms) for raw, due in jobs])
            cursor = int(following)
            if cursor == 0:
                return

    async def _search_parked(self) -> None:
        self._here = 0
        for event in await self._reader.parked_events():
            name = self._keys.parked_event(event.decode(errors="backslashreplace"))
            place = 0
            while self._may_go_on:
                seen, members = await self._call("job_search_parked", (name,), place)
                self._read(seen, [self._decoder.parked(raw, self._now_ms) for raw in members])
                place += seen
                if seen < _STEP_ON_SERVER:
                    break

    async def _search_behind(self) -> None:
        names = (self._keys.waiting_keys, self._keys.order)
        number, place = 0, 0
        self._here = 0
        while self._may_go_on:
            reply = await self._call("job_search_behind", names, number, place)
            if reply is None:
                return
            seen, members = reply
            self._read(seen, [self._decoder.behind(raw, self._now_ms) for raw in members])
            number, place = (number, place + seen) if seen == _STEP_ON_SERVER else (number + 1, 0)

    async def _search_stream(self, groups: Sequence[Group]) -> None:
        """Search the undelivered entries. An id that the server generated is read directly."""
        first = min((group.last_delivered for group in groups), key=parse_id, default="0-0")
        if is_entry_id(self.id):
            for entry_id, fields in await self._reader.send("XRANGE", self._keys.stream, self.id, self.id):
                if parse_id(entry_id.decode()) > parse_id(first):
                    self._offer(self._decoder.entry(entry_id, fields, self._now_ms))
        async for entry_id, fields in self._matches(self._keys.stream, first):
            self._offer(self._decoder.entry(entry_id, fields, self._now_ms))

    async def _search_dead(self) -> None:
        async for entry_id, _ in self._matches(self._keys.dead, "0-0"):
            dead = await self._reader.dead_letters.show(entry_id.decode())
            if dead is not None and dead.record.id == self.id:
                self.tracebacks.append(dead.record.traceback)
                self._offer(self._decoder.dead(dead, self._now_ms))

    async def _matches(self, key: str, after: str) -> AsyncIterator[tuple[bytes, Any]]:
        position = after
        self._here = 0
        while self._may_go_on:
            seen, last, found = await self._call("job_search", (key,), f"({position}")
            for entry_id, fields in found:
                yield entry_id, fields
            self._read(seen, ())
            if seen < _STEP_ON_SERVER:
                return
            position = last.decode()

    async def _call(self, script: str, keys: Sequence[str], *position: str | int) -> Any:
        """Search one step of a place, from a position."""
        return await self._reader.call(script, keys, (*position, _STEP_ON_SERVER, self._text))

    @property
    def _may_go_on(self) -> bool:
        """False once the limit of this place is reached."""
        if self._here >= self._limit:
            self.complete = False
            return False
        return True

    def _read(self, count: int, jobs: Sequence[JobReport | None]) -> None:
        """Count messages that were read, and keep those with the wanted id."""
        self._here += count
        self.scanned += count
        for job in jobs:
            self._offer(job)

    def _offer(self, job: JobReport | None) -> None:
        if job is not None and job.id == self.id and job not in self.found:
            self.found.append(job)
