"""The fetch loop: wait for capacity, then claim stale entries, then read new ones.

Capacity comes first because reading makes this consumer the owner: the idle time starts, and no other consumer can take
the entry until it is stale. Reading only what a worker will start soon is the back-pressure.

See docs/decisions/0013.
"""

import asyncio
import contextlib
import time
from collections.abc import Collection, Sequence
from enum import Enum

from conquiet.errors import GroupMissingError, QueueError
from conquiet.metrics.registry import RUNTIME_CLAIMED_TOTAL, RUNTIME_GROUPS_RECREATED_TOTAL
from conquiet.metrics.safety import count
from conquiet.redis_transport.async_connection import AsyncRedisConnection, ConnectionLostError
from conquiet.redis_transport.errors import translate
from conquiet.runtime.acknowledger import Acknowledger
from conquiet.runtime.batch import MessagePool
from conquiet.runtime.claim_schedule import START, ClaimSchedule
from conquiet.runtime.message import Charge, RuntimeMessage
from conquiet.runtime.name_reservation import NameReservation
from conquiet.runtime.parts import EngineParts
from conquiet.runtime.reconnect import Reconnect
from conquiet.runtime.stream_reader import StreamReader
from conquiet.runtime.stream_scheduler import ReadRequest, StreamScheduler, prefetch_now

_PARTIAL_WAIT_MS = 100
_OWN_PAGE = 100
_FLUSH_S = 0.1
_LONGEST_CLAIM_S = 10.0
"""Longest average time between two scans of a stream for stale entries."""


class FetcherState(Enum):
    """The state of the loop. While it is BUSY, the next read also sends due acknowledgements."""

    BUSY = "busy"  # between two reads, or in a non-blocking read
    WAITING = "waiting for capacity"
    BLOCKED = "blocked"  # in a blocking read
    DISCONNECTED = "disconnected"  # no connection, or not started, or ended


class Fetcher:
    """Fetches for one pool until stopped.

    Args:
        streams: Streams to read.
        reader: Reads them.
        connection: The reader's connection.
        acknowledger: Its due acknowledgements are sent with the next read.
        reconnect: Delays between reconnect attempts.
        pool: Runs fetched messages.
        name: Reserves the consumer name.
        parts: The parts that all parts of the engine share.
    """

    def __init__(
        self,
        streams: Sequence[str],
        *,
        reader: StreamReader,
        connection: AsyncRedisConnection,
        acknowledger: Acknowledger,
        reconnect: Reconnect,
        pool: MessagePool,
        name: NameReservation,
        parts: EngineParts,
    ) -> None:
        self._all_streams = tuple(streams)
        self._streams = self._all_streams
        self._paused: frozenset[str] = frozenset()
        self._applied = self._paused
        self._reader = reader
        self._connection = connection
        self._acknowledger = acknowledger
        self._reconnect = reconnect
        self._pool = pool
        self._name = name
        self._settings = settings = parts.settings
        self._budget, self._outage, self._pace = parts.budget, parts.outage, parts.pace
        self._table, self._stats, self._on_error = parts.table, parts.stats, parts.on_error
        self._scheduler = StreamScheduler(streams, settings.priorities)
        self._claims = ClaimSchedule(streams, min(settings.claim_idle_s / 4, _LONGEST_CLAIM_S))
        self._state = FetcherState.DISCONNECTED
        self._stopping = asyncio.Event()
        self._waiter: asyncio.Future[None] | None = None
        self._found_last = self._read_to_end = False
        self._undelivered: list[str] = []
        """Streams that may have had entries in a lost reply."""
        self._lost_reply = False
        self._failure: BaseException | None = None
        self._flushed_at = 0.0
        # Time and kind of the last call that takes ownership of entries, with or without a reply.
        self._sent_at, self._claiming = time.monotonic(), False
        self.reads_begun = 0
        self.last_progress = time.monotonic()
        self.lag: dict[str, int | None] = dict.fromkeys(streams)
        self._budget.subscribe(self.wake)

    @property
    def is_blocked(self) -> bool:
        """True during a blocking read."""
        return self._state is FetcherState.BLOCKED

    @property
    def is_unanswered(self) -> bool:
        """True if a reply was lost and its entries were not recovered yet."""
        return self._lost_reply and bool(self._undelivered)

    def progress(self, last_end: float) -> float:
        """Return the time of the last progress. While waiting for capacity, a handler that ends is progress."""
        waits_for_server = self._state in {FetcherState.BUSY, FetcherState.BLOCKED}
        return self.last_progress if waits_for_server else max(self.last_progress, last_end)

    @property
    def is_stopping(self) -> bool:
        """True after ``stop()``."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Stop reading. A read in flight is not cancelled: its entries would be lost in the reply."""
        self._stopping.set()
        self.wake()

    def fail(self, error: BaseException) -> None:
        """Stop, and make ``run()`` raise this error."""
        self._failure = error
        self.stop()

    def pause_streams(self, streams: Collection[str]) -> None:
        """Read and claim nothing from these streams until called again without them. Read messages still run."""
        self._paused = frozenset(streams) & frozenset(self._all_streams)
        self.wake()

    def wake(self) -> None:
        """Check again whether there is capacity."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
            if self._state is FetcherState.WAITING:
                self._acknowledger.expect_reader()  # reverted if there is still no capacity

    async def run(self) -> None:
        """Fetch until stopped.

        Raises:
            GroupMissingError: A group is gone and ``recreate_group`` is off.
            QueueError: Reconnecting failed too often.
        """
        try:
            await self._fetch_until_stopped()
        finally:
            self._enter(FetcherState.DISCONNECTED)
            self._budget.remove(self)
        if self._failure is not None:
            raise self._failure

    def _enter(self, state: FetcherState) -> None:
        self._state = state
        if state is FetcherState.BUSY:
            self._acknowledger.expect_reader()
        else:
            self._acknowledger.expect_no_reader()

    async def _fetch_until_stopped(self) -> None:
        own = [(stream, START) for stream in self._all_streams]
        while not self._stopping.is_set():
            self._return_budget()
            capacity = await self._wait_for_capacity()
            if capacity == 0:
                return
            self._apply_paused_streams()
            if not self._streams:
                await self._wait_while_all_paused()
                continue
            self._enter(FetcherState.BUSY)
            try:
                own.sort(key=lambda left: left[0] in self._paused)
                if self._undelivered:
                    await self._recover_undelivered(capacity)
                elif own and own[0][0] in self._streams:
                    own = await self._recover_own(own, capacity)
                elif not await self._claim(capacity) and self._applied == self._paused:  # else apply it first
                    await self._read(capacity)
                # Start fetched messages first: an immediate result is acknowledged in the same write as the next
                # read.
                await asyncio.sleep(0)
                self._flush_stats()
            except ConnectionLostError as lost:
                await self._connect_again(self._no_reply(lost))
            except GroupMissingError as error:
                await self._group_lost(error)
            except QueueError as error:
                # The server replies with an error: loading, read-only after a failover, out of memory.
                await self._connect_again(error)

    def _return_budget(self) -> None:
        """Return the reservation of a read that has ended."""
        self._budget.release(self)
        self._budget.notify()

    def _capacity_now(self) -> int:
        prefetch = prefetch_now(self._pace.average_s, self._budget.concurrency, self._budget.prefetch)
        if self._pool.waiting > prefetch // 2:  # a full read later is cheaper than a small read now
            self._pool.notify_below(prefetch // 2)
            return 0
        return self._outage.limit(self._budget.available(self, self._pool.in_flight, prefetch))

    def _apply_paused_streams(self) -> None:
        # Applied between two reads, so that no result is recorded for a stream that the new scheduler lacks.
        if self._applied != self._paused:
            self._applied = self._paused
            self._streams = tuple(stream for stream in self._all_streams if stream not in self._paused)
            self._scheduler = StreamScheduler(self._streams, self._settings.priorities)

    async def _wait_while_all_paused(self) -> None:
        """Wait while every stream is paused."""
        self._return_budget()
        self._enter(FetcherState.DISCONNECTED)  # no read follows that would send acknowledgements
        self._waiter = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._waiter}, timeout=self._settings.slice_ms / 1000)
        self.last_progress = time.monotonic()

    async def _wait_for_capacity(self) -> int:
        """Return how many entries may be fetched, 0 after ``stop()``."""
        while not self._stopping.is_set():
            capacity = self._capacity_now()
            if capacity > 0:
                self._budget.reserve(self, capacity, waiting=False)
                return capacity
            self._enter(FetcherState.WAITING)
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            flushing = loop.call_later(_FLUSH_S, self._flush_now)  # handlers may run for hours
            try:
                await self._waiter
            finally:
                flushing.cancel()
        return 0

    async def _read(self, capacity: int) -> None:
        if (capacity := self._outage.limit(capacity)) == 0:
            return  # an outage began during the claim
        requests, wait_ms = self._plan(capacity)
        self.reads_begun += 1
        acks = self._acknowledger.take_batch()
        if wait_ms:
            most = sum(len(request.streams) * request.each for request in requests)
            self._budget.reserve(self, most, waiting=True)
            self._enter(FetcherState.BLOCKED)
        self._sent_at, self._claiming = time.monotonic(), False
        messages, found = await self._reader.read(requests, wait_ms=wait_ms, acks=acks)
        self._enter(FetcherState.BUSY)
        self._reconnect.succeeded()  # not after every reply: a read-only server still replies to queries
        for stream, number in found.items():
            self._stats[stream].read += number
        self._scheduler.record(requests, found)
        self._budget.record(len(messages))
        self._found_last = bool(messages)
        self._read_to_end = not messages and sum(len(one.streams) for one in requests) == len(self._all_streams)
        self._deliver(messages)
        self._return_budget()

    def _plan(self, capacity: int) -> tuple[list[ReadRequest], int]:
        """Return the reads and how long they block."""
        requests = self._scheduler.plan(capacity)
        everywhere = len(requests) == 1 and len(requests[0].streams) == len(self._streams)
        if self._scheduler.any_full or not (everywhere or self._scheduler.all_were_empty) or not self._budget.may_block:
            return requests, 0
        wait_ms = self._settings.slice_ms
        most = self._outage.limit(self._budget.available_for_wait(self, self._pool.in_flight))
        if most <= 0:
            return requests, 0  # others have reserved the rest: a blocking read would have no streams
        if not everywhere or most < capacity:
            # More streams than capacity. The prefetch covers the difference; the other streams are read round-robin.
            requests = [self._scheduler.plan_wait(most)]
        if len(requests[0].streams) < len(self._streams) or self._budget.is_oversubscribed:
            wait_ms = min(wait_ms, _PARTIAL_WAIT_MS)
        return requests, min(wait_ms, int(self._claims.next_due_s(time.monotonic()) * 1000))

    async def _claim(self, capacity: int) -> bool:
        """Claim stale entries of the due streams. True if any was claimed."""
        now = time.monotonic()
        due = self._claims.due(now, capacity, idle=not self._found_last)
        claimed = False
        for stream, most in due.items():
            # The streams at the beginning of this round: for a stream just resumed, the consumer's pending entries are
            # read first, and they would include an entry claimed before that.
            if stream not in self._streams:
                self._claims.postpone(stream, now)
                continue
            self._sent_at, self._claiming = time.monotonic(), True
            messages, cursor = await self._reader.pending.claim(stream, self._claims.cursor(stream), most)
            # The reply has arrived: a loss from here on concerns the next call.
            self._sent_at, self._claiming = time.monotonic(), False
            self._reconnect.succeeded()
            self._claims.record(stream, cursor, time.monotonic())
            if messages:
                claimed = True
                self._record_claimed(stream, len(messages))
                self._deliver_again(messages)
        if due:
            # After a read that emptied all streams the lag is 0: no command is needed.
            self.lag |= dict.fromkeys(due, 0) if self._read_to_end else await self._reader.lag(list(due))
        return claimed

    async def _recover_own(self, own: list[tuple[str, str]], capacity: int) -> list[tuple[str, str]]:
        """Deliver a page of entries that an earlier process with this consumer id left pending. Return the rest."""
        (stream, cursor), *rest = own
        messages, next_cursor = await self._reader.pending.read_own(stream, cursor, min(capacity, _OWN_PAGE))
        self._reconnect.succeeded()
        self._stats[stream].read += len(messages)
        self._deliver_again(messages)
        return rest if next_cursor is None else [(stream, next_cursor), *rest]

    async def _recover_undelivered(self, capacity: int) -> None:
        """Deliver the entries of a lost reply, up to the capacity."""
        stream, by_claim = self._undelivered[0], self._claiming
        messages, more = await self._reader.pending.recover_undelivered(
            stream, capacity, sent_at=self._sent_at, by_claim=by_claim
        )
        if by_claim:
            self._record_claimed(stream, len(messages))
        else:
            self._stats[stream].read += len(messages)
        self._deliver(messages)
        if not more:
            self._undelivered.pop(0)

    def _record_claimed(self, stream: str, number: int) -> None:
        self._stats[stream].claimed += number
        count(RUNTIME_CLAIMED_TOTAL, stream, n=number)

    def _deliver(self, messages: list[RuntimeMessage]) -> None:
        self.last_progress = time.monotonic()
        if messages:
            self._outage.record_fetch()
        self._pool.put(messages)

    def _deliver_again(self, messages: list[RuntimeMessage]) -> None:
        """Deliver entries that were delivered before. A suspect runs alone."""
        if alone := [message for message in messages if message.charge is Charge.AT_START_ALONE]:
            self._outage.record_fetch()
            self._pool.put_alone(alone)
        self._deliver([message for message in messages if message.charge is not Charge.AT_START_ALONE])

    def _flush_stats(self) -> None:
        """Pass counts to the metrics every ``_FLUSH_S``: per stream that costs as much as several messages."""
        if self.last_progress >= self._flushed_at + _FLUSH_S:
            self._flushed_at = self.last_progress
            self._flush_now()

    def _flush_now(self) -> None:
        for stream in self._all_streams:
            self._stats[stream].flush(len(self._table.of(stream)))

    async def _connect_again(self, error: QueueError) -> None:
        """Wait and reconnect. Afterwards the entries of a lost reply are recovered before anything else.

        Raises:
            QueueError: Too many consecutive attempts failed.
        """
        self._enter(FetcherState.DISCONNECTED)
        self._return_budget()
        self._lost_reply = error.in_doubt or self.is_unanswered
        self._undelivered = list(self._all_streams)
        self._reader.pending.begin_recovery()
        while not self._stopping.is_set():
            delay_s = self._reconnect.delay_s(error, self._connection.address)
            if delay_s is None:
                raise error  # not reported here: run() raises it
            self._on_error(error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)
            if self._stopping.is_set():
                return
            try:
                await self._connection.open()
                await self._name.report(self._all_streams, self._connection.call)
            except ConnectionLostError as lost:
                error = self._no_reply(lost)
            else:
                return

    async def _group_lost(self, error: GroupMissingError) -> None:
        """Recreate the groups if ``recreate_group`` is set, else raise the error."""
        if not self._settings.recreate_group:
            raise error
        self._on_error(error)
        try:
            for stream in await self._reader.create_groups(self._all_streams):
                count(RUNTIME_GROUPS_RECREATED_TOTAL, stream)
        except ConnectionLostError as lost:
            await self._connect_again(self._no_reply(lost))

    def _no_reply(self, lost: ConnectionLostError) -> QueueError:
        streams = ", ".join(self._all_streams)
        return translate(lost.reason, stream=streams, group=self._reader.group, command="XREADGROUP")
