"""The loop that fetches: room first, then stale work, then new work.

Room comes first because an entry that was read is ours: its clock runs, and nobody else can take it. So
nothing is read that no slot will begin with soon; that is the back-pressure.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum

from conquiet.errors import GroupMissingError, QueueError
from conquiet.queue.faults import translate
from conquiet.runtime.acknowledger import Acknowledger
from conquiet.runtime.concurrency_pool import ConcurrencyPool
from conquiet.runtime.context import RuntimeMessage
from conquiet.runtime.fairness import StreamRota, Take, prefetch_now
from conquiet.runtime.metrics import StreamTally, observe_claimed, observe_group_recreated
from conquiet.runtime.reconnect import Reconnect
from conquiet.runtime.room import Room
from conquiet.runtime.settings import RuntimeSettings
from conquiet.runtime.stealing import START, StealSchedule
from conquiet.runtime.stream_reader import StreamReader
from conquiet.runtime.wire import Wire, WireLostError

_PARTIAL_WAIT_MS = 100
_OWN_PAGE = 100
_FLUSH_S = 0.1


class _Doing(Enum):
    """Where the loop is, as far as the acknowledger must know."""

    BUSY = "busy"  # between two reads, or in one that does not wait
    WAITING_FOR_ROOM = "waiting for room"
    BLOCKED = "blocked"  # in a read that waits on the server
    APART = "apart"  # no connection, or not begun, or over


class Intake:
    """Fetches for one pool until told to stop.

    Args:
        streams: What to read.
        reader: How to read it.
        wire: The reader's connection.
        room: What may still be fetched, shared with the others who fetch for the pool.
        settings: Times and limits.
        tallies: Counts per stream.
        on_error: Told about everything that goes wrong.
    """

    def __init__(
        self,
        streams: Sequence[str],
        *,
        reader: StreamReader,
        wire: Wire,
        room: Room,
        settings: RuntimeSettings,
        tallies: Mapping[str, StreamTally],
        reconnect: Reconnect,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._all_streams = tuple(streams)
        self._streams = self._all_streams
        self._withheld: frozenset[str] = frozenset()
        self._heeded = self._withheld
        self._reader = reader
        self._wire = wire
        self._room = room
        self._settings = settings
        self._tallies = tallies
        self._reconnect = reconnect
        self._on_error = on_error
        self._rota = StreamRota(streams, settings.priorities)
        self._stealing = StealSchedule(streams, min(settings.claim_idle_s / 4, 5.0))
        self._pool: ConcurrencyPool[RuntimeMessage]
        self._acknowledger: Acknowledger
        self._average_s: Callable[[], float]
        self._held: Callable[[str], int]
        self._wake_others: Callable[[], None]
        self._doing = _Doing.APART
        self._stopping = asyncio.Event()
        self._room_waiter: asyncio.Future[None] | None = None
        self._found_last = False
        self._stranded: list[str] = []
        self._lost_answer = False
        self._failure: QueueError | None = None
        self._flushed_at = 0.0
        # Of the last call that made entries ours, whether its reply has arrived or not.
        self._sent_at, self._claiming = time.monotonic(), False
        self.reads_begun = 0
        self.last_progress = time.monotonic()
        self.lag: dict[str, int | None] = dict.fromkeys(streams)

    def connect(
        self,
        pool: ConcurrencyPool[RuntimeMessage],
        acknowledger: Acknowledger,
        *,
        average_s: Callable[[], float],
        held: Callable[[str], int],
        wake_others: Callable[[], None],
    ) -> None:
        """Name the neighbours that themselves need to know us."""
        self._pool = pool
        self._acknowledger = acknowledger
        self._average_s = average_s
        self._held = held
        self._wake_others = wake_others

    @property
    def is_blocked(self) -> bool:
        """True while a read waits on the server."""
        return self._doing is _Doing.BLOCKED

    @property
    def is_unanswered(self) -> bool:
        """True if an answer was lost, and what the server gave in it was not looked for yet."""
        return self._lost_answer and bool(self._stranded)

    def progress(self, last_end: float) -> float:
        """When something last came of our work. While we wait for room, that is when a handler came to its end."""
        waits_for_server = self._doing in {_Doing.BUSY, _Doing.BLOCKED}
        return self.last_progress if waits_for_server else max(self.last_progress, last_end)

    @property
    def is_stopping(self) -> bool:
        """True once told to read nothing more."""
        return self._stopping.is_set()

    def will_come(self) -> bool:
        """True if the next read, which takes due acknowledgements along, is a matter of microseconds."""
        if self._doing is _Doing.WAITING_FOR_ROOM and self._room_now() > 0:
            self.wake()
            return True
        return self._doing is _Doing.BUSY

    def stop(self) -> None:
        """Read nothing more. A read in flight is not broken off: its entries would be stranded."""
        self._stopping.set()
        self.wake()

    def fail(self, error: QueueError) -> None:
        """Stop, and let ``run()`` raise this."""
        self._failure = error
        self.stop()

    def withhold(self, streams: Collection[str]) -> None:
        """Read and claim nothing from these streams, until told otherwise. What was read goes on."""
        self._withheld = frozenset(streams) & frozenset(self._all_streams)
        self.wake()

    def wake(self) -> None:
        """Look again whether there is room."""
        if self._room_waiter is not None and not self._room_waiter.done():
            self._room_waiter.set_result(None)

    async def run(self) -> None:
        """Fetch until stopped.

        Raises:
            GroupMissingError: A group is gone and was not to be built again.
            QueueError: A connection could not be had back.
        """
        try:
            await self._fetch_until_stopped()
        finally:
            self._doing = _Doing.APART
            self._room.leave(self)
            self._acknowledger.nudge()
        if self._failure is not None:
            raise self._failure

    async def _fetch_until_stopped(self) -> None:
        own = [(stream, START) for stream in self._all_streams]
        while not self._stopping.is_set():
            self._let_others()
            room = await self._wait_for_room()
            if room == 0:
                return
            self._heed_withheld()
            if not self._streams:
                await self._wait_for_release()
                continue
            self._doing = _Doing.BUSY
            try:
                own.sort(key=lambda left: left[0] in self._withheld)
                if self._stranded:
                    await self._recover_stranded(room)
                elif own and own[0][0] in self._streams:
                    own = await self._recover_own(own, room)
                elif not await self._steal(room) and self._heeded == self._withheld:  # else to be heeded first
                    await self._read(room)
                # What was fetched begins before anything else happens: what is done at once is acknowledged
                # in the same write as the next read, and nobody waits for our bookkeeping.
                await asyncio.sleep(0)
                self._flush_tallies()
            except WireLostError as lost:
                await self._come_back(self._no_answer(lost))
            except GroupMissingError as error:
                await self._group_lost(error)
            except QueueError as error:
                # The server answers but refuses: loading, read-only after a failover, out of memory.
                await self._come_back(error)

    def _let_others(self) -> None:
        """Nothing of ours is on its way: what was set aside for it is free."""
        self._room.release(self)
        self._wake_others()

    def _room_now(self) -> int:
        prefetch = prefetch_now(self._average_s(), self._room.slots, self._settings.prefetch)
        if self._pool.waiting > prefetch // 2:  # enough in store; a fuller read later is cheaper than a small one now
            self._pool.tell_at(prefetch // 2)
            return 0
        return self._room.for_reading(self, self._pool.in_hand, prefetch)

    def _heed_withheld(self) -> None:
        # Between two reads, so that no turn is noted for a stream that is not in the rota any more.
        if self._heeded != self._withheld:
            self._heeded = self._withheld
            self._streams = tuple(stream for stream in self._all_streams if stream not in self._withheld)
            self._rota = StreamRota(self._streams, self._settings.priorities)

    async def _wait_for_release(self) -> None:
        """Wait while every stream is withheld."""
        self._let_others()
        self._doing = _Doing.APART  # no read is coming that would take acknowledgements along
        self._acknowledger.nudge()
        self._room_waiter = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._room_waiter}, timeout=self._settings.slice_ms / 1000)
        self.last_progress = time.monotonic()

    async def _wait_for_room(self) -> int:
        """Return the room there is; 0 once stopping."""
        while not self._stopping.is_set():
            room = self._room_now()
            if room > 0:
                self._room.set_aside(self, room, waiting=False)
                return room
            self._doing = _Doing.WAITING_FOR_ROOM
            self._acknowledger.nudge()
            loop = asyncio.get_running_loop()
            self._room_waiter = loop.create_future()
            flushing = loop.call_later(_FLUSH_S, self._flush_now)  # handlers may take hours to make room
            try:
                await self._room_waiter
            finally:
                flushing.cancel()
        return 0

    async def _read(self, room: int) -> None:
        takes, wait_ms = self._plan(room)
        self.reads_begun += 1
        if wait_ms:
            self._room.set_aside(self, sum(len(take.streams) * take.each for take in takes), waiting=True)
            self._doing = _Doing.BLOCKED
        self._sent_at, self._claiming = time.monotonic(), False
        messages, found = await self._reader.read(
            takes, wait_ms=wait_ms, acks=self._acknowledger.take(), acknowledger=self._acknowledger
        )
        self._doing = _Doing.BUSY
        self._reconnect.succeeded()  # not at any answer: a server that refuses writes still answers questions
        for stream, count in found.items():
            self._tallies[stream].read += count
        self._rota.note(takes, found)
        self._room.note(len(messages))
        self._found_last = bool(messages)
        self._deliver(messages)
        self._let_others()

    def _plan(self, room: int) -> tuple[list[Take], int]:
        """Return the reads and how long to wait in them."""
        takes = self._rota.plan(room)
        everywhere = len(takes) == 1 and len(takes[0].streams) == len(self._streams)
        if self._rota.anybody_full or not (everywhere or self._rota.all_were_empty) or not self._room.may_wait:
            return takes, 0
        wait_ms = self._settings.slice_ms
        patience = self._room.for_waiting(self, self._pool.in_hand)
        if not everywhere or patience < room:
            # More streams than room. The store takes the difference; what it cannot take is asked in turn.
            takes = [self._rota.plan_wait(patience)]
        if len(takes[0].streams) < len(self._streams) or self._room.is_crowded:
            wait_ms = min(wait_ms, _PARTIAL_WAIT_MS)
        return takes, min(wait_ms, int(self._stealing.next_look(time.monotonic()) * 1000))

    async def _steal(self, room: int) -> bool:
        """Look for stale work where a look is due. True if it took room."""
        now = time.monotonic()
        looks = self._stealing.due(now, room, idle=not self._found_last)
        taken = False
        for stream, count in looks.items():
            # As this turn began, not as it is by now: what has just been released has its own pending entries
            # read first, and an entry claimed before that would be among them.
            if stream not in self._streams:
                self._stealing.put_off(stream, now)
                continue
            self._sent_at, self._claiming = time.monotonic(), True
            messages, cursor = await self._reader.claim(stream, self._stealing.cursor(stream), count)
            # Its reply is here: what is lost from now on is lost from the next call.
            self._sent_at, self._claiming = time.monotonic(), False
            self._reconnect.succeeded()
            self._stealing.looked(stream, cursor, time.monotonic())
            if messages:
                taken = True
                self._note_claimed(stream, len(messages))
                self._deliver(messages)
        if looks:
            self.lag |= await self._reader.lag(list(looks))
        return taken

    async def _recover_own(self, own: list[tuple[str, str]], room: int) -> list[tuple[str, str]]:
        """Deliver a page of what a former life of this consumer id left pending. Returns what is left to do."""
        (stream, cursor), *rest = own
        messages, next_cursor = await self._reader.read_own(stream, cursor, min(room, _OWN_PAGE))
        self._reconnect.succeeded()
        self._tallies[stream].read += len(messages)
        self._deliver(messages)
        return rest if next_cursor is None else [(stream, next_cursor), *rest]

    async def _recover_stranded(self, room: int) -> None:
        """Deliver what a lost reply has left with us, as far as there is room."""
        stream = self._stranded[0]
        sent_at, by_claim = self._sent_at, self._claiming
        messages, more = await self._reader.recover_stranded(stream, room, sent_at=sent_at, by_claim=by_claim)
        if by_claim:
            self._note_claimed(stream, len(messages))
        else:
            self._tallies[stream].read += len(messages)
        self._deliver(messages)
        if not more:
            self._stranded.pop(0)

    def _note_claimed(self, stream: str, count: int) -> None:
        self._tallies[stream].claimed += count
        observe_claimed(stream, count)

    def _deliver(self, messages: list[RuntimeMessage]) -> None:
        self.last_progress = time.monotonic()
        self._pool.put(messages)

    def _flush_tallies(self) -> None:
        """Hand numbers to the metrics, now and then: it costs a stream as much as some messages do."""
        if self.last_progress >= self._flushed_at + _FLUSH_S:
            self._flushed_at = self.last_progress
            self._flush_now()

    def _flush_now(self) -> None:
        for stream in self._all_streams:
            self._tallies[stream].flush(self._held(stream))

    async def _come_back(self, error: QueueError) -> None:
        """Wait and connect anew. What a lost reply has left with us is fetched then, before anything else.

        Raises:
            QueueError: It failed too often in a row.
        """
        self._doing = _Doing.APART
        self._let_others()
        self._acknowledger.nudge()
        self._lost_answer = error.in_doubt or self.is_unanswered
        self._stranded = list(self._all_streams)
        self._reader.begin_recovery()
        while not self._stopping.is_set():
            delay_s = self._reconnect.delay_s()
            if delay_s is None:
                raise error  # told once, as what the engine ended with
            self._on_error(error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)
            if self._stopping.is_set():
                return
            try:
                await self._wire.open()
            except WireLostError as lost:
                error = self._no_answer(lost)
            else:
                return

    async def _group_lost(self, error: GroupMissingError) -> None:
        """Stop, or build the groups again if that was asked for."""
        if not self._settings.recreate_group:
            raise error
        self._on_error(error)
        try:
            for stream in await self._reader.create_groups(self._all_streams):
                observe_group_recreated(stream)
        except WireLostError as lost:
            await self._come_back(self._no_answer(lost))

    def _no_answer(self, lost: WireLostError) -> QueueError:
        error = translate(
            lost.reason, stream=", ".join(self._all_streams), group=self._reader.group, command="XREADGROUP"
        )
        error.__cause__ = lost.reason
        return error
