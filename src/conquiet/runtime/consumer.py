"""The runtime engine: fetch, run the handler, acknowledge, tell what happened. SPEC(002).

Policy is not here. Retries, delays and dead letters belong to ``processor``, which is an ordinary
handler to this module.

A message is in exactly one of these places at any moment:

    in the stream ──read──▶ waiting for a slot ──▶ handler running ──success──▶ acknowledged
                                 │                      │
                                 │ stop: handed back    └─ failed, broken off or process died:
                                 ▼                         stays pending until someone claims it
                      pending, uncharged, free for anybody

This file is the engine's life: putting the parts together, starting, stopping, ending.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from redis.exceptions import RedisError, ResponseError

from conquiet.errors import ConfigurationError, QueueError
from conquiet.kernel.identity import stable_consumer_id
from conquiet.kernel.lifecycle import Lifecycle, Status
from conquiet.kernel.validation import require_positive, require_text
from conquiet.queue.client import AnyRedis, clone_async, clone_sync
from conquiet.queue.commands import pack
from conquiet.queue.faults import translate
from conquiet.queue.scripts import EXTEND_LEASE
from conquiet.runtime import handover
from conquiet.runtime.acknowledger import Acknowledger
from conquiet.runtime.concurrency_pool import ConcurrencyPool
from conquiet.runtime.context import RuntimeMessage
from conquiet.runtime.events import Callback, EngineError, EventDispatcher
from conquiet.runtime.health import Health, StopReport
from conquiet.runtime.intake import Intake
from conquiet.runtime.lease import Heartbeat, LeaseTable
from conquiet.runtime.metrics import StreamTally, observe_handed_back, observe_lease_lost
from conquiet.runtime.reconnect import Reconnect
from conquiet.runtime.runner import Handler, Invoker, Runner, lease_lost
from conquiet.runtime.settings import RuntimeSettings, require_streams
from conquiet.runtime.stream_reader import StreamReader
from conquiet.runtime.wire import Wire, WireLostError

logger = logging.getLogger(__name__)

_FORCED_S = 5.0
_ACKS_S = 5.0


class Consumer:
    """Reads streams as a member of a group and runs a handler for each message, so many at a time.

    Args:
        streams: Keys of the streams. They are served fairly.
        redis: A ``redis.asyncio.Redis`` or ``redis.Redis``. It stays as it is: the engine opens three
            connections of its own to the same server and closes them at its end.
        handler: ``async def handler(message, ctx)``, or a plain function, which runs in a thread.
        concurrency: Most handlers at once.
        group: The consumer group; created, from the stream's beginning on, if it is not there.
        consumer_id: Our name in the group, the same for the whole life: by default
            ``consumer-{hostname}-{pid}``, with a suffix for further engines of the process.
        on_exhausted: ``(message, ctx)``, called instead of the handler past ``max_deliveries``. The message
            stays pending unless it calls ``ctx.ack()``. Without it, an ``error`` event is all that happens.
        settings: Everything else. Its fields may be given as keywords instead.
    """

    def __init__(
        self,
        *,
        streams: Sequence[str],
        redis: AnyRedis,
        handler: Handler,
        concurrency: int = 1,
        group: str = "processor",
        consumer_id: str | None = None,
        on_exhausted: Handler | None = None,
        settings: RuntimeSettings | None = None,
        **options: Any,
    ) -> None:
        self._streams = require_streams(streams)
        self._concurrency = require_positive("concurrency", concurrency)
        self._group = require_text("group", group)
        if consumer_id is not None:
            require_text("consumer_id", consumer_id)
        if settings is not None and options:
            raise ConfigurationError("pass settings or single options, not both")
        try:
            self._settings = settings or RuntimeSettings(**options)
        except TypeError as error:
            raise ConfigurationError(f"no such option of runtime.Consumer: {', '.join(options)}") from error
        self.claim_idle_s = self._settings.claim_idle_s
        self._async_client = clone_async(redis)
        self._sync_client = clone_sync(redis)
        self._consumer_id = consumer_id or stable_consumer_id()
        self._lifecycle = Lifecycle("this Consumer")
        self._dispatcher = EventDispatcher()
        self._stop_asked = False
        self._forced = asyncio.Event()
        self._unblocking: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._background: asyncio.Task[StopReport] | None = None
        self.report: StopReport | None = None
        self._handlers = (handler, on_exhausted)
        self._assemble(handler, on_exhausted)

    def set_concurrency(self, concurrency: int) -> None:
        """Change the most handlers at once, before the start: what ``conquiet worker --concurrency`` does."""
        self._lifecycle.require_new("concurrency")
        self._concurrency = require_positive("concurrency", concurrency)
        self._assemble(*self._handlers)

    def _assemble(self, handler: Handler, on_exhausted: Handler | None) -> None:
        """Put the parts together. Nothing is sent."""
        settings = self._settings
        self._table = LeaseTable(self._streams)
        self._tallies = {stream: StreamTally(stream) for stream in self._streams}
        self._read_wire = Wire(self._async_client, "read")
        self._ack_wire = Wire(self._async_client, "ack")
        self._reconnects = [
            Reconnect(settings.reconnect, settings.max_reconnects, wire.name)
            for wire in (self._read_wire, self._ack_wire)
        ]
        self._reader = StreamReader(
            self._read_wire,
            group=self._group,
            consumer_id=self._consumer_id,
            settings=settings,
            table=self._table,
            on_error=self._tell,
        )
        self._intake = Intake(
            self._streams,
            reader=self._reader,
            wire=self._read_wire,
            settings=settings,
            concurrency=self._concurrency,
            tallies=self._tallies,
            reconnect=self._reconnects[0],
            on_error=self._tell,
        )
        self._acknowledger = Acknowledger(
            self._ack_wire,
            group=self._group,
            table=self._table,
            reconnect=self._reconnects[1],
            on_error=self._tell,
            reader_is_coming=self._intake.will_come,
        )
        self._runner = Runner(
            Invoker(handler, self, self._threads),
            on_exhausted=None if on_exhausted is None else Invoker(on_exhausted, self, self._threads),
            acknowledger=self._acknowledger,
            table=self._table,
            dispatcher=self._dispatcher,
            tallies=self._tallies,
            settings=settings,
            custody=self,
        )
        self._pool = ConcurrencyPool(self._concurrency, self._runner, on_free=self._intake.wake)
        self._intake.connect(
            self._pool,
            self._acknowledger,
            average_s=lambda: self._runner.average_s,
            held=lambda stream: len(self._table.of(stream)),
        )
        self._heartbeat = Heartbeat(
            self._sync_client,
            self._table,
            group=self._group,
            consumer_id=self._consumer_id,
            settings=settings,
            on_lost=self._lease_lost_in_thread,
            on_error=self._heartbeat_failed_in_thread,
        )

    # ------------------------------------------------------------ for everybody

    @property
    def consumer_id(self) -> str:
        """Our name in the group."""
        return self._consumer_id

    @property
    def status(self) -> Status:
        """Where the engine's life stands."""
        return self._lifecycle.status

    @property
    def active_tasks(self) -> int:
        """Handlers running now."""
        return self._pool.active

    def on(self, event: str, callback: Callback) -> None:
        """Call ``callback(event)`` for each ``started``, ``succeeded``, ``failed`` or ``error`` event.

        Plain callbacks are called at once and should be quick; async ones in order, from a task of their own.
        """
        self._dispatcher.on(event, callback)

    async def start(self, stop_event: asyncio.Event | None = None) -> StopReport:
        """Consume until ``stop()`` is called or ``stop_event`` is set; then stop in order and return the report.

        Cancelling the caller's task counts as a stop: the engine ends in order, then the cancellation goes on.
        A second cancellation forces.

        Raises:
            GroupMissingError: A group went away while running, and ``recreate_group`` is not set.
            QueueError: The server could not be reached, at the start or for too long.
            LifecycleError: It was started or stopped before. An engine lives once.
        """
        self._lifecycle.start()
        self._loop = asyncio.get_running_loop()
        engine = asyncio.create_task(self._live(), name=f"conquiet-engine-{self._consumer_id}")
        watcher = None if stop_event is None else asyncio.create_task(self._watch(stop_event))
        try:
            return await self._outlast(engine)
        finally:
            if watcher is not None:
                watcher.cancel()
                await asyncio.gather(watcher, return_exceptions=True)

    def stop(self) -> None:
        """Ask for the end: nothing new is read or begun, running handlers get the grace period.

        A second call forces: running handlers are cancelled. Safe in a signal handler and from any thread: it
        assigns and wakes the loop, and takes no lock.
        """
        if self._stop_asked:
            self._on_loop(self._forced.set)
        self._stop_asked = True
        self._request_stop()

    def withhold(self, streams: Collection[str]) -> None:
        """Read nothing from these of our streams until called again without them. Call it on the event loop.

        What was read already goes on. The engine does not look for a reason: that is for a higher layer.
        """
        self._intake.withhold(streams)
        if streams and self._intake.is_blocked and self._read_wire.client_id is not None:
            self._unblock_soon(self._read_wire.client_id)

    async def wait_for_active_tasks(self) -> None:
        """Return when no handler is running any more and what they finished is acknowledged."""
        await self._pool.wait_quiet()
        await self._acknowledger.flush()

    def health(self) -> Health:
        """Tell how it is doing, without asking the server."""
        return Health(
            status=self._lifecycle.status,
            connected=self._read_wire.is_open,
            progress_age_s=time.monotonic() - max(self._intake.last_progress, self._runner.last_end),
            active=self._pool.active,
            in_hand=len(self._table),
            unacknowledged=self._acknowledger.unconfirmed,
            lease_alive=self._heartbeat.is_alive,
            lag=dict(self._intake.lag),
            streams={stream: tally.counts for stream, tally in self._tallies.items()},
            reconnects=sum(reconnect.total for reconnect in self._reconnects),
            slots=self._concurrency,
            patience_s=3.0 + self._settings.slice_ms / 1000,
        )

    async def __aenter__(self) -> Self:
        """Start in the background; return once it consumes."""
        self._background = asyncio.create_task(self.start())
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({self._background, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._background.done():
            await self._background
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop in order. An engine that died meanwhile raises its error here."""
        self._request_stop()
        if self._background is not None:
            await self._background

    # ------------------------------------------------------------ for contexts (Custody)

    async def acknowledge(self, message: RuntimeMessage) -> None:
        """See ``MessageContext.ack``."""
        await self._acknowledger.acknowledge(message)

    async def extend(self, message: RuntimeMessage) -> bool:
        """See ``MessageContext.extend``."""
        now = time.monotonic()
        packed = pack("EVAL", EXTEND_LEASE, 1, message.stream, self._group, self._consumer_id, message.id)
        try:
            (reply,) = await self._acknowledger.borrow([packed])
        except WireLostError as lost:
            raise translate(lost.reason, stream=message.stream, group=self._group, command="XCLAIM") from lost.reason
        if isinstance(reply, ResponseError):
            raise translate(reply, stream=message.stream, group=self._group, command="XCLAIM") from reply
        if reply:
            message.leased_at = now
        return bool(reply)

    # ------------------------------------------------------------ the life

    async def _live(self) -> StopReport:
        failure: BaseException | None = None
        self._dispatcher.start()
        try:
            await self._open()
            self._pool.start()
            self._acknowledger.start()
            self._heartbeat.start()
            if self._lifecycle.is_stopping:
                self._begin_stop()
            self._ready.set()
            await self._intake.run()
        except WireLostError as lost:
            failure = translate(
                lost.reason, stream=self._streams[0], group=self._group, command="XGROUP CREATE", sent=False
            )
            failure.__cause__ = lost.reason
        except QueueError as error:
            failure = error
        finally:
            self._lifecycle.stop()
            report = await self._end()
        if failure is not None:
            self._tell(failure)
            raise failure
        return report

    async def _open(self) -> None:
        await self._read_wire.open()
        await self._ack_wire.open()
        await self._reader.create_groups(self._streams)

    async def _end(self) -> StopReport:
        """Stop in order: hand back, let finish, acknowledge, close. Leaves no task and no thread of ours."""
        self._pool.hold()
        handed_back, stranded = await self._hand_back(self._pool.take_back())
        await self._let_finish()
        abandoned = self._pool.cancel_running()
        if abandoned:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._pool.wait_quiet(), _FORCED_S)
        stubborn = await self._pool.close(timeout_s=_FORCED_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ACKS_S):
                await self._acknowledger.flush()
        if self._unblocking is not None:
            await asyncio.gather(self._unblocking, return_exceptions=True)
        unacknowledged = await self._acknowledger.close()
        self._heartbeat.stop()
        await asyncio.to_thread(self._heartbeat.join, _FORCED_S)
        await self._read_wire.close()
        await self._ack_wire.close()
        with contextlib.suppress(RedisError, OSError):
            await self._async_client.aclose()
        if self._executor is not None:
            # Not waited for: a thread cannot be broken off. What still runs in one is in the report.
            self._executor.shutdown(wait=False, cancel_futures=True)
        for stream, tally in self._tallies.items():
            tally.flush(len(self._table.of(stream)))
        self.report = report = StopReport(
            succeeded=sum(tally.succeeded for tally in self._tallies.values()),
            failed=sum(tally.failed for tally in self._tallies.values()),
            handed_back=handed_back,
            stranded=stranded,
            abandoned=tuple((message.stream, message.id) for message in abandoned),
            unacknowledged=tuple((message.stream, message.id) for message in unacknowledged),
        )
        self._lifecycle.finish()
        logger.info(
            "engine stopped",
            extra={
                "consumer_id": self._consumer_id,
                "succeeded": report.succeeded,
                "failed": report.failed,
                "handed_back": handed_back,
                "stranded": stranded,
                "abandoned": len(abandoned),
                "unacknowledged": len(unacknowledged),
                "stubborn": stubborn,
            },
        )
        await self._dispatcher.close(timeout_s=_FORCED_S)
        return report

    async def _hand_back(self, messages: list[RuntimeMessage]) -> tuple[int, int]:
        """Return how many unstarted messages were given back, and how many could not be."""
        commands = handover.commands(messages, self._group, self._consumer_id)
        given = [0] * len(commands)
        if commands:
            try:
                given = handover.given_back(await self._acknowledger.borrow(list(commands.values())))
            except WireLostError as lost:
                self._tell(translate(lost.reason, stream=messages[0].stream, group=self._group, command="XCLAIM"))
        for message in messages:
            self._table.release(message)
        for stream, count in zip(commands, given, strict=True):
            observe_handed_back(stream, count)
        return sum(given), len(messages) - sum(given)

    async def _let_finish(self) -> None:
        """Give running handlers the grace period, or until the stop is forced."""
        quiet = asyncio.create_task(self._pool.wait_quiet())
        forced = asyncio.create_task(self._forced.wait())
        await asyncio.wait({quiet, forced}, timeout=self._settings.grace_s, return_when=asyncio.FIRST_COMPLETED)
        for task in (quiet, forced):
            task.cancel()
        await asyncio.gather(quiet, forced, return_exceptions=True)

    async def _outlast(self, engine: asyncio.Task[StopReport]) -> StopReport:
        """Wait for the engine, whatever happens to the caller's task meanwhile."""
        cancelled: asyncio.CancelledError | None = None
        while not engine.done():
            try:
                await asyncio.shield(engine)
            except asyncio.CancelledError as error:
                if engine.done():
                    break
                # A read that is broken off would strand entries: the engine is stopped, not cancelled.
                if cancelled is not None:
                    self._forced.set()
                cancelled = error
                self._request_stop()
            except Exception:  # noqa: BLE001 - raised again below, from the task itself
                break
        if cancelled is not None:
            if not engine.cancelled():
                engine.exception()  # seen: the cancellation is what the caller gets
            raise cancelled
        return engine.result()

    async def _watch(self, stop_event: asyncio.Event) -> None:
        await stop_event.wait()
        self._request_stop()

    def _request_stop(self) -> None:
        self._lifecycle.stop()
        self._on_loop(self._begin_stop)

    def _begin_stop(self) -> None:
        self._pool.hold()
        self._intake.stop()
        if self._intake.is_blocked and self._read_wire.client_id is not None:
            self._unblock_soon(self._read_wire.client_id)

    def _unblock_soon(self, client_id: int) -> None:
        if self._unblocking is None or self._unblocking.done():
            self._unblocking = asyncio.create_task(self._unblock(client_id))

    async def _unblock(self, client_id: int) -> None:
        # Only to be quick: without it (or without the right to it) the read ends with its slice.
        with contextlib.suppress(WireLostError):
            while self._intake.is_blocked:
                await self._acknowledger.borrow([pack("CLIENT", "UNBLOCK", client_id)])
                await asyncio.sleep(0.01)  # it may have come before the read itself

    def _threads(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._concurrency, thread_name_prefix="conquiet-handler")
        return self._executor

    # ------------------------------------------------------------ news from elsewhere

    def _tell(self, error: BaseException, message: RuntimeMessage | None = None) -> None:
        facts = {"error": type(error).__name__, "stream": getattr(error, "stream", None)}
        logger.warning("engine error", extra=facts)
        self._dispatcher.emit(EngineError(error, message))

    def _on_loop(self, call: Any, *args: Any) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is nobody left to tell
                self._loop.call_soon_threadsafe(call, *args)

    def _lease_lost_in_thread(self, message: RuntimeMessage) -> None:
        observe_lease_lost(message.stream)
        self._on_loop(self._lease_lost, message)

    def _lease_lost(self, message: RuntimeMessage) -> None:
        self._tell(lease_lost(message), message)

    def _heartbeat_failed_in_thread(self, error: RedisError | OSError) -> None:
        told = translate(error, stream=", ".join(self._streams), group=self._group, command="XCLAIM")
        told.__cause__ = error
        self._on_loop(self._tell, told)
