"""One round of the scheduler: reload changed entries from Redis, plan due ticks, fire them.

Times are read from the server (TIME) at every poll and again inside the firing script. A host's own clock only measures
the time since it last saw the server's.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate

from conquiet.core.clock import Clock
from conquiet.core.json_codec import encode_payload
from conquiet.core.log import FactLogger
from conquiet.errors import QueueError
from conquiet.metrics.registry import (
    SCHEDULER_ERRORS_TOTAL,
    SCHEDULER_FIRED_TOTAL,
    SCHEDULER_LATENESS_SECONDS,
    SCHEDULER_MISSED_TOTAL,
)
from conquiet.metrics.safety import count, observe
from conquiet.processor.envelope import Envelope, to_payload
from conquiet.processor.jobs import JobRecorder, JobState, NewState
from conquiet.processor.keys import keys_of
from conquiet.scheduler.entries import Origin, ScheduleEntry
from conquiet.scheduler.misfires import FirePlan, plan_fires
from conquiet.scheduler.schedule_store import Declared, FireRequest, FireResult, Record, ScheduleStore
from conquiet.scheduler.stream_state import StreamState

logger = FactLogger(__name__)

_MS = 1_000
_LARGEST_MESSAGE = 1_048_576


class TickFirer:
    """Keep the entries of all streams in memory and fire what is due.

    Args:
        store: The group's entries in Redis.
        declared: The entries of this program by name; read at every use.
        group: Label of the metrics.
        clock: Measures the time between two polls.
        jobs: Records each fired message as a waiting job; None to record nothing.
    """

    def __init__(
        self,
        store: ScheduleStore,
        declared: Mapping[str, ScheduleEntry],
        *,
        group: str,
        clock: Clock,
        jobs: JobRecorder | None,
    ) -> None:
        self._store = store
        self._declared = declared
        self._group = group
        self._clock = clock
        self._jobs = jobs
        self._streams: dict[str, StreamState] = {}
        self._reported: set[str] = set()
        self._server_ms, self._server_seen_at = 0, 0.0
        self.polled_at = -math.inf

    def is_wanted(self, record: Record) -> bool:
        """Return True if this program fires the entry: it was added at run time, or is declared here."""
        return record.origin is Origin.RUNTIME or record.entry.name in self._declared

    def server_now_ms(self) -> float:
        """Estimate the server's time."""
        # The server read its clock before its reply arrived, so the estimate is not ahead of it (unless this host's
        # clock runs too fast, and then the firing script returns "early").
        return self._server_ms + (self._clock.monotonic() - self._server_seen_at) * _MS

    async def store_declared(self, *, data_was_lost: bool = False) -> None:
        """Store the entries of this program; move entries that were stored on another stream."""
        records = await self._readable()
        for entry in self._declared.values():
            elsewhere = [one for one in records if one.entry.name == entry.name and one.entry.stream != entry.stream]
            # Freeze, store, remove: a host killed between two of these leaves an entry that no host fires, or an
            # entry that only the hosts of one stream fire, and the next start continues from there.
            position = None
            for record in elsewhere:
                position = await self._store.freeze(record) or position
            outcome = await self._store.declare(
                entry,
                Origin.CODE,
                # A one-off time that is past has most likely been fired. The preferred loss is a late tick.
                past_is_done=data_was_lost,
                position=position,
            )
            if outcome is not Declared.SAME:
                logger.info("schedule entry declared", entry=entry.name, outcome=outcome.value)
            for record in elsewhere:
                await self._store.remove(record.entry.stream, entry.name)

    async def refresh(self) -> int:
        """Poll the server, reload the streams that changed, and return the server's time (ms)."""
        snapshot = await self._store.snapshot(self._streams)
        self.polled_at = self._clock.monotonic()
        self._see(snapshot.now)
        now = snapshot.now
        epochs = [(state.version.epoch, snapshot.versions.get(stream)) for stream, state in self._streams.items()]
        if any(version is not None and epoch not in {None, version.epoch} for epoch, version in epochs):
            # FLUSHALL, or a server that restarted without its data. Entries of this program are stored again. Entries
            # that were added at run time are lost with the server's data.
            logger.warning("schedule data was lost; storing the entries of this program again")
            await self.store_declared(data_was_lost=True)
            snapshot = await self._store.snapshot(snapshot.versions)
        for stream, error in snapshot.refused.items():
            self._back_off(stream, error, snapshot.now)
        for stream, version in snapshot.versions.items():
            state = self._streams.setdefault(stream, StreamState())
            if state.version != version:
                try:
                    await self._reload(stream, state)
                except QueueError as error:
                    self._back_off(stream, error, snapshot.now)
        return now

    async def fire(self, now: int) -> int | None:
        """Fire what is due at ``now`` and return when to fire next (ms), None if never."""
        while due := self._due(now):
            for stream, requests in due.items():
                try:
                    now = await self._fire_stream(stream, requests)
                except QueueError as error:
                    self._back_off(stream, error, now)
                else:
                    self._streams[stream].reset_backoff()
                    self._see(now)
        wake_times = [at for state in self._streams.values() if (at := state.next_wake(now)) is not None]
        return min(wake_times, default=None)

    def _see(self, now: int) -> None:
        self._server_ms, self._server_seen_at = now, self._clock.monotonic()

    def _back_off(self, stream: str, error: QueueError, now: int) -> None:
        """Skip a stream for a moment after a refusal of the server (a key of another type, no rights, no memory).

        The other streams continue. An error without a reply concerns all streams and is raised.
        """
        if error.in_doubt:
            raise error
        state = self._streams.setdefault(stream, StreamState())
        state.back_off(now)
        count(SCHEDULER_ERRORS_TOTAL, self._group)
        if state.refusals.bit_count() == 1:  # the 1st, 2nd, 4th, 8th…: it may last for days
            logger.warning(
                "entries of a stream cannot be fired",
                stream=stream,
                failures=state.refusals,
                reason=str(error),
            )

    async def _readable(self) -> list[Record]:
        """Return all records, without the streams that the server refuses to show: these prevent no start."""
        found: list[Record] = []
        snapshot = await self._store.snapshot()
        for stream in snapshot.versions:
            try:
                found += (await self._store.load(stream))[1]
            except QueueError as error:
                self._back_off(stream, error, snapshot.now)
        return found

    async def _reload(self, stream: str, state: StreamState) -> None:
        state.version, records, unreadable = await self._store.load(stream)
        live = [record for record in records if record.paused_since is None and self.is_wanted(record)]
        state.records = {record.entry.name: record for record in live}
        state.wake_at = {record.entry.name: record.decided for record in live}  # due now: the next plan corrects it
        undeclared = [record.entry.name for record in records if not self.is_wanted(record)]
        self._report("schedule entry is no longer declared and is not fired; remove() it", undeclared)
        self._report("schedule entry cannot be read by this release and is not fired", unreadable)

    def _report(self, message: str, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._reported:
                self._reported.add(name)
                logger.warning(message, entry=name)

    def _due(self, now: int) -> dict[str, list[FireRequest]]:
        """Plan every due entry; for an entry with nothing to fire only store its next time."""
        due: dict[str, list[FireRequest]] = {}
        for stream, state in self._streams.items():
            for name in state.due(now):
                record = state.records[name]
                planned = plan_fires(record.entry, record.decided, now)
                if planned.decided == record.decided:
                    state.schedule(name, planned.wake_at)
                else:
                    due.setdefault(stream, []).append(_request(record, planned, now))
        return due

    async def _fire_stream(self, stream: str, requests: list[FireRequest]) -> int:
        """Fire the requests of one stream, apply their results, and return the server's time."""
        state = self._streams[stream]
        results = await self._store.fire(stream, requests)
        fired: list[NewState] = []
        for request, result, pointer, server_now in results:
            entry = request.record.entry
            match result:
                case FireResult.DONE:
                    fired += [(entry.fire_id(due), entry.event, 1, JobState.WAITING) for due in request.plan.fire]
                    state.records[entry.name] = replace(request.record, decided=pointer)
                    state.schedule(entry.name, request.plan.wake_at)
                    _record_fired(stream, request, server_now)
                case FireResult.STALE:  # another host was first
                    state.records[entry.name] = replace(request.record, decided=pointer)
                    state.wake_at[entry.name] = pointer
                case FireResult.EARLY:
                    state.wake_at[entry.name] = max(map(entry.fire_at, request.plan.fire))
                case FireResult.PAUSED | FireResult.CHANGED:
                    # Changed since the last poll; the next one notices that and reloads.
                    del state.wake_at[entry.name]
        if self._jobs is not None and fired:
            # Afterwards, and only for jobs not yet known: a worker may have run one of them already.
            await self._jobs.record_all(keys_of(stream), fired, only_new=True)
        return results[-1][-1]


def _record_fired(stream: str, request: FireRequest, server_now: int) -> None:
    entry, plan = request.record.entry, request.plan
    count(SCHEDULER_FIRED_TOTAL, stream, n=len(plan.fire))
    # Jitter is not lateness: a tick is due when it and the ticks before it may be fired.
    for fire_at in accumulate(map(entry.fire_at, plan.fire), max):
        observe(SCHEDULER_LATENESS_SECONDS, stream, value=max(0.0, (server_now - fire_at) / _MS))
    if plan.missed:
        count(SCHEDULER_MISSED_TOTAL, stream, n=plan.missed)
        logger.warning("scheduled ticks were missed", entry=entry.name, missed=plan.missed)


def _request(record: Record, planned: FirePlan, now: int) -> FireRequest:
    entry = record.entry
    messages = [
        encode_payload(
            to_payload(Envelope(entry.event, entry.fire_id(due), dict(entry.data), emitted_ms=now)),
            max_bytes=_LARGEST_MESSAGE,
        )
        for due in planned.fire
    ]
    return FireRequest(record, planned, messages)
