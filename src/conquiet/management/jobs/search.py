"""Find one job by its id. The server searches messages in steps, up to a limit. Changes nothing."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from conquiet.core.json_codec import encode_json
from conquiet.core.validation import require_positive, require_text
from conquiet.management.jobs.models import JobReport
from conquiet.management.jobs.reader import Group, JobReader
from conquiet.processor.dead_letters import read_dead_message
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
        keys, decoder, now_ms = self._keys, self._decoder, self._now_ms
        await self._search(
            "job_search_delayed", [(keys.delayed,)], "0", lambda found: decoder.delayed(found[0], found[1], now_ms)
        )
        parked = [
            (keys.parked_event(event.decode(errors="backslashreplace")),)
            for event in await self._reader.parked_events()
        ]
        await self._search("job_search_parked", parked, "0", lambda raw: decoder.parked(raw, now_ms))
        behind = (keys.waiting_keys, keys.order)
        await self._search("job_search_behind", [behind], "0:0", lambda raw: decoder.behind(raw, now_ms))
        undelivered = min((group.last_delivered for group in groups), key=parse_id, default="0-0")
        if is_entry_id(self.id) and parse_id(self.id) > parse_id(undelivered):
            # The server generated the id: the entry is read directly.
            for entry in await self._reader.send("XRANGE", keys.stream, self.id, self.id):
                self._offer(decoder.entry(entry[0], entry[1], now_ms))
        await self._search(
            "job_search", [(keys.stream,)], undelivered, lambda found: decoder.entry(found[0], found[1], now_ms)
        )
        await self._search("job_search", [(keys.dead,)], "0-0", self._read_dead)
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

    async def _search(
        self, script: str, places: Sequence[Sequence[str]], start: str, read: Callable[[Any], JobReport | None]
    ) -> None:
        """Search the keys of each place step by step. ``read`` decodes what a script has found."""
        self._here = 0
        for keys in places:
            position: bytes | int | str | None = start
            while position is not None and self._may_go_on:
                step = (position, _STEP_ON_SERVER, self._text)
                position, seen, found = await self._reader.call(script, keys, step)
                self._read(seen, [read(one) for one in found])

    def _read_dead(self, entry: Any) -> JobReport | None:
        dead = read_dead_message(*entry, partition=self._reader.partition)
        if dead.record.id != self.id:
            return None
        self.tracebacks.append(dead.record.traceback)
        return self._decoder.dead(dead, self._now_ms)

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
