"""Housekeeping of streams: a thread that removes entries every group is done with, and names of dead consumers.

    every interval_s, for each stream      take or renew the lease ──▶ trim, step by step
    every 10 s, for each stream            take or renew the lease ──▶ sample the backlog, see ``backlog_sampler``
    every 20 s, for each stream's group    take or renew the lease ──▶ remove the names of dead consumers

With a lease in Redis one host at a time does the work. The lease saves work and protects nothing: each step is one
script that is safe from any host. A host that resumes after its lease expired does no harm, and a killed host is
replaced when its lease expires.

A stream with nothing to do is visited less and less often, up to 16 times ``interval_s`` apart. A host that then reads
a message from it makes a pass soon after, and takes the lease over if its holder makes none for a while. Each thread
checks every ``interval_s`` whether its process has read any: no command is sent for that.

Without a retention no entry is removed, and only names that workers of conquiet have registered. The thread then checks
once a minute whether the stream only grows, and logs one warning.

It uses a thread and a synchronous connection: the same object serves ``QueueConsumer`` and the asyncio engines, and a
handler that blocks the event loop does not stop it.

See docs/decisions/0011.
"""

import asyncio
import contextlib
import itertools
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from conquiet.core.backoff import Backoff
from conquiet.core.closing import ClosedAfterUse
from conquiet.core.functions import require_plain_function
from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.core.validation import require_text
from conquiet.errors import ConfigurationError, LifecycleError, QueueError
from conquiet.metrics.registry import (
    QUEUE_CONSUMERS_REMOVED_TOTAL,
    QUEUE_ENTRIES_TRIMMED_TOTAL,
    QUEUE_HOUSEKEEPING_ERRORS_TOTAL,
)
from conquiet.metrics.safety import count
from conquiet.queue.backlog_sampler import INTERVAL_S, BacklogSampler, sampling_key
from conquiet.queue.retention import Retention, require_retention, warn_of_growth
from conquiet.queue.stream_progress import StreamProgress, lease_ms, longest_lease_ms
from conquiet.redis_transport.client import AnyRedis, SyncClient
from conquiet.redis_transport.client_commands import command_sync
from conquiet.redis_transport.errors import ResponseError
from conquiet.redis_transport.liveness import (
    RELEASE_NAME,
    housekeeping_key,
    liveness_key,
    registry_key,
)
from conquiet.redis_transport.replies import consumer_infos, counts_attempts, info_fields, text
from conquiet.redis_transport.retention_scripts import LIST_NAMES, REMOVE_DEAD_NAMES, TRIM
from conquiet.redis_transport.scripts import Script
from conquiet.redis_transport.topology import known_address, topology_of
from conquiet.redis_transport.worker_reports import workers_key

logger = FactLogger(__name__)

STEP_ENTRIES: Final = 10_000
"""Most entries removed by one script call. Measured: about a millisecond, during which the server does nothing else."""

_STEPS_PER_PASS = 20
_WATCH_S = 60.0
SAMPLING_S = INTERVAL_S
_NAMES_S = 20.0
_NAMES_PER_CALL = 200
_UNREGISTERED_IDLE_MS = 3_600_000
"""Idle time after which a name without a liveness key is removed, if the server counts reads."""
_GAP_SPARE = 100
_TIMEOUT_S = 5.0
_ABORT_S = 1.0
_AFTER_ERROR = Backoff(base_s=2.0, cap_s=60.0, jitter=0.0)
_POLL_S = 0.01

_TRIM = Script.from_source("trim", TRIM, action="trimming")
_REMOVE_NAMES = Script.from_source("remove_dead_names", REMOVE_DEAD_NAMES, action="removing dead consumers")
_LIST_NAMES = Script.from_source("list_names", LIST_NAMES, action="listing the consumers of a group")
_RELEASE = Script.from_source("release", RELEASE_NAME, action="releasing the lease of the housekeeping")


class StreamHousekeeper(ClosedAfterUse):
    """Trim streams and remove names of dead consumers, while any consumer reads them.

    ``Processor`` starts one for its streams. For streams of a ``runtime.Consumer`` or a ``QueueConsumer``:

    >>> with StreamHousekeeper(redis, ["orders"], group="billing"):  # doctest: +SKIP
    ...     consumer.run(handler=handle, engine=engine)

    Args:
        redis: The client to clone connections from. The caller closes it.
        streams: Keys of the streams.
        group: Names of dead consumers are removed from this group; without a group, no names are removed.
        retention: The entries to keep. None removes no entry and only warns about a stream that grows.
        messages_read: Returns how many messages of a stream this process has read so far. A stream that was quiet is
            visited as soon as that number has changed; without it, up to 16 ``interval_s`` later.
    """

    def __init__(
        self,
        redis: AnyRedis,
        streams: Sequence[str],
        *,
        group: str | None = None,
        retention: Retention | None = Retention(),  # noqa: B008 - frozen
        messages_read: Callable[[str], int] | None = None,
    ) -> None:
        if isinstance(streams, str) or not streams:
            raise ConfigurationError("streams must be a list of at least one stream name")
        require_retention(retention)
        if messages_read is not None:
            require_plain_function("messages_read", messages_read)
        self._streams = tuple(require_text("streams", stream) for stream in streams)
        self._group = None if group is None else require_text("group", group)
        self._retention = retention
        self._messages_read = messages_read
        self._topology = topology_of(redis, timeout_s=_TIMEOUT_S)
        self._token = uuid.uuid4().hex
        self._counts_attempts: bool | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._states: dict[str, StreamProgress] = {}

    def start(self) -> None:
        """Start the thread. Nothing is sent before its first pass.

        Raises:
            LifecycleError: It was started or closed before.
        """
        if self._thread is not None or self._stopping.is_set():
            raise LifecycleError("this StreamHousekeeper was started before. Create a new one.")
        now = time.monotonic()
        for stream in self._streams:
            # Spread: hosts that start together should not visit the stream together.
            spread = random.random()  # noqa: S311
            first_s = _WATCH_S * (1 + spread) if self._retention is None else self._retention.interval_s * spread
            sampler = BacklogSampler(stream, self._token, interval_s=SAMPLING_S)
            self._states[stream] = StreamProgress(now + first_s, now + _NAMES_S * spread, sampler)
        # A daemon: a process that ends without stopping it must not hang on it.
        self._thread = threading.Thread(target=self._run, name="conquiet-housekeeper", daemon=True)
        self._thread.start()

    def close(self, *, timeout_s: float = 2.0) -> None:
        """End the thread, release the leases and close the connections. A second call does nothing.

        Blocks for up to ``timeout_s``: in an event loop, use ``aclose``.
        """
        deadline = self._begin_close(timeout_s)
        while self._is_running(deadline):
            time.sleep(_POLL_S)
        while not self._topology.try_close():
            time.sleep(_POLL_S)

    async def aclose(self, *, timeout_s: float = 2.0) -> None:
        """Do what ``close`` does, without blocking the event loop."""
        deadline = self._begin_close(timeout_s)
        while self._is_running(deadline):  # noqa: ASYNC110 - a thread ends
            await asyncio.sleep(_POLL_S)
        await self._topology.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def _begin_close(self, timeout_s: float) -> float:
        self._stopping.set()
        return time.monotonic() + timeout_s

    def _is_running(self, deadline: float) -> bool:
        """Return whether to wait on for the thread; past the deadline its call is aborted."""
        if self._thread is None or not self._thread.is_alive():
            return False
        if time.monotonic() < deadline:
            return True
        self._topology.abort()
        if time.monotonic() < deadline + _ABORT_S:
            return True
        logger.warning("housekeeping has not ended yet")  # connecting; ends with the time allowed for that
        return False

    # ------------------------------------------------------------ in the thread

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_s(time.monotonic())):
            for stream, state in self._states.items():
                if self._stopping.is_set():
                    break
                self._visit(stream, state)
        for state in self._states.values():
            state.outage.close()
            state.sampler.forget()
        self._release()

    def _pause_s(self, now: float) -> float:
        due = [min(state.next_at, state.sampler.next_at) for state in self._states.values()]
        if self._group is not None:
            due += [state.names_at for state in self._states.values()]
        if self._retention is not None and self._messages_read is not None:
            due += [now + self._retention.interval_s for state in self._states.values() if state.is_quiet]
        return max(0.0, min(due) - now)

    def _visit(self, stream: str, state: StreamProgress) -> None:
        now = time.monotonic()
        try:
            state.sampler.sample(self._topology.client(stream))
            if self._retention is not None:
                if self._messages_read is not None:
                    state.observe_reads(self._messages_read(stream))
                if state.is_due(now):
                    self._trim(stream, state, self._retention)
            elif now >= state.next_at:
                state.next_at = now + _WATCH_S
                self._watch(stream, state)
            if self._group is not None and now >= state.names_at:
                state.names_at = now + _NAMES_S * (0.5 + random.random())  # noqa: S311
                state.leased = self._remove_names(stream, self._group) or state.leased
            state.failures = 0
            state.outage.succeeded()
        except Exception as error:  # noqa: BLE001 - a thread that died would be missed only when memory runs out
            self._failed(stream, state, error)

    def _trim(self, stream: str, state: StreamProgress, retention: Retention) -> None:
        """Remove, step by step, entries that every group is done with, if this host has the lease."""
        gaps_from, removed_so_far = "", 0
        ends_at = time.monotonic() + retention.interval_s / 2
        max_left_ms = longest_lease_ms(retention.interval_s) if state.begin_pass() else ""
        for step in itertools.count():
            now = time.monotonic()
            # A step in the gaps reads at most 256 KiB: of large messages that is a few dozen, so it may take many.
            if step >= _STEPS_PER_PASS and (not gaps_from or now >= ends_at):
                return
            reply = self._step(stream, retention, gaps_from, state.longest_pause, max_left_ms)
            outcome = text(reply[0])
            if outcome == "held":
                state.schedule_while_held(now, int(reply[2]) / 1000, int(reply[3]), retention.interval_s)
                return
            state.leased = True
            if outcome != "ok":
                state.schedule_next(now, retention.interval_s, removed=False)
                return
            _, needed, removed, length, undone, slowest, cursor = reply
            removed_so_far += removed
            state.schedule_next(now, retention.interval_s, removed=removed_so_far > 0, undone=undone)
            count(QUEUE_ENTRIES_TRIMMED_TOTAL, stream, n=removed)
            if state.held_back.observe(text(needed), length, now):
                logger.warning(
                    "stream is kept long by a group that does not advance: start its consumers, or destroy the group",
                    stream=printable(stream),
                    group=printable(slowest.decode(errors="replace")),
                )
            if gaps_from:
                state.searched_gaps(text(cursor), removed, now)
            may_have_gaps = length - undone - retention.keep_min >= _GAP_SPARE and now >= state.gaps_at
            if self._stopping.is_set() or not (removed or (may_have_gaps and text(cursor) != "end")):
                return
            gaps_from = state.gaps_from if may_have_gaps and (gaps_from or not removed) else ""

    def _step(
        self, stream: str, retention: Retention, gaps_from: str, longest_pause: int, max_left_ms: int | str
    ) -> Any:
        keep = (round(retention.keep_s * 1000), retention.keep_min)
        lease = (self._token, lease_ms(longest_pause, retention.interval_s), max_left_ms)
        args = ("trim", STEP_ENTRIES, *keep, gaps_from, *lease)
        return self._call(_TRIM, stream, (stream, housekeeping_key(stream)), args)

    def _watch(self, stream: str, state: StreamProgress) -> None:
        reply = self._call(_TRIM, stream, (stream,), ("report", 0, 0, 0, ""))
        done = int(reply[3]) - int(reply[4])
        if text(reply[0]) == "ok" and state.growth.observe(done):
            warn_of_growth(stream, done)

    def _remove_names(self, stream: str, group: str) -> bool:
        """Remove the names of dead consumers if this host has the lease. Return whether it has."""
        leased_ms = round(_NAMES_S * 2_000)
        rows = self._call(
            _LIST_NAMES, stream, (housekeeping_key(stream, group), stream), (self._token, leased_ms, group)
        )
        if rows is None:
            return False
        client = self._topology.client(stream)
        known = consumer_infos(rows)
        idle = [name for one in known if one.pending == 0 and (name := _name(one.name)) is not None]
        random.shuffle(idle)
        # Names that are not registered are of other programs.
        may_be_foreign = self._retention is not None and self._server_counts_attempts(client)
        proof_ms = _UNREGISTERED_IDLE_MS if may_be_foreign else ""
        for at in range(0, min(len(idle), _NAMES_PER_CALL * _STEPS_PER_PASS), _NAMES_PER_CALL):
            names = idle[at : at + _NAMES_PER_CALL]
            keys = (stream, registry_key(stream, group), *(liveness_key(stream, group, name) for name in names))
            removed = self._call(_REMOVE_NAMES, stream, keys, (group, proof_ms, *names))
            if removed:
                command_sync(client, "HDEL", workers_key(stream, group), *removed, stream=stream, group=group)
                count(QUEUE_CONSUMERS_REMOVED_TOTAL, stream, n=len(removed))
                logger.info(
                    "names of dead consumers removed",
                    stream=printable(stream),
                    group=printable(group),
                    count=len(removed),
                )
            if self._stopping.is_set():
                break
        return True

    def _server_counts_attempts(self, client: SyncClient) -> bool:
        if self._counts_attempts is None:
            self._counts_attempts = counts_attempts(
                info_fields(command_sync(client, "INFO", "server")).get("redis_version", "0")
            )
        return self._counts_attempts

    def _call(self, script: Script, stream: str, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        return script.call_sync(self._topology.client(stream), keys, args, stream=stream)

    def _failed(self, stream: str, state: StreamProgress, error: Exception) -> None:
        if self._stopping.is_set():
            return
        count(QUEUE_HOUSEKEEPING_ERRORS_TOTAL, stream)
        state.failures += 1
        state.schedule_after_failure(time.monotonic(), _AFTER_ERROR.delay_s(state.failures))
        if isinstance(error, QueueError) and not isinstance(error.__cause__, ResponseError):
            state.outage.failed(error, address=known_address(self._topology, stream))
        elif state.failures == 1:  # one record; the metric counts on
            logger.failure(logging.WARNING, "housekeeping failed, trying again later", error, stream=stream)
        if isinstance(error, QueueError):
            self._topology.refresh()

    def _release(self) -> None:
        """Release our leases, so that another host need not wait for them to expire."""
        for stream, state in self._states.items():
            keys = [sampling_key(stream)] if state.sampler.is_owner else []
            if state.leased:
                keys += [housekeeping_key(stream)]
                keys += [] if self._group is None else [housekeeping_key(stream, self._group)]
            with contextlib.suppress(QueueError):
                for key in keys:
                    self._call(_RELEASE, stream, (key,), (self._token,))


def _name(raw: bytes) -> str | None:
    """Return a consumer's name; None if it is not UTF-8, which no worker of conquiet's has."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
