"""The runtime engine: fetch, run the handler, acknowledge, tell what happened. SPEC(002).

Policy is not here. Retries, delays and dead letters belong to ``processor``, which is an ordinary
handler to this module.

A message is in exactly one of these places at any moment:

    in the stream ──read──▶ waiting for a slot ──▶ handler running ──success──▶ acknowledged
                                 │                      │
                                 │ stop: handed back    └─ failed, broken off or process died:
                                 ▼                         stays pending until someone claims it
                      pending, uncharged, free for anybody

This file is the engine's life: putting the parts together, starting, asking for the end. The end itself is
``shutdown``; what fetches is a ``Shard``, one for a server and one per slot for a Redis Cluster.
"""

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from redis.exceptions import ReadOnlyError, RedisError

from conquiet.errors import ConfigurationError, QueueError
from conquiet.kernel.background import until_ready
from conquiet.kernel.identity import stable_consumer_id
from conquiet.kernel.lifecycle import Lifecycle, Status
from conquiet.kernel.validation import require_positive, require_text
from conquiet.queue.client import AnyCluster, AnyRedis
from conquiet.queue.faults import translate
from conquiet.runtime.cluster import servers_of
from conquiet.runtime.concurrency_pool import ConcurrencyPool
from conquiet.runtime.context import RuntimeMessage
from conquiet.runtime.events import Callback, EngineError, EventDispatcher
from conquiet.runtime.health import Health, StopReport
from conquiet.runtime.lease import Heartbeat, LeaseTable
from conquiet.runtime.metrics import StreamTally, observe_lease_lost
from conquiet.runtime.room import Room
from conquiet.runtime.runner import Handler, Invoker, Runner, lease_lost
from conquiet.runtime.settings import RuntimeSettings, require_streams, settings_from
from conquiet.runtime.shard import Shard
from conquiet.runtime.shutdown import Shutdown, outlast
from conquiet.runtime.wire import WireLostError

logger = logging.getLogger(__name__)


class Consumer:
    """Reads streams as a member of a group and runs a handler for each message, so many at a time.

    Args:
        streams: Keys of the streams. They are served fairly.
        redis: A client, plain or of a Redis Cluster, of ``redis.asyncio`` or ``redis``. It stays as it is: the
            engine opens three connections of its own to the same server (two for each slot of a cluster that a
            stream lies in, and one for each node) and closes them at its end.
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
        redis: AnyRedis | AnyCluster,
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
        self._settings = settings_from(settings, options)
        self.claim_idle_s = self._settings.claim_idle_s
        self._servers = servers_of(redis, timeout_s=self._settings.heartbeat_timeout_s)
        self._consumer_id = consumer_id or stable_consumer_id()
        self._lifecycle = Lifecycle("this Consumer")
        self._dispatcher = EventDispatcher()
        self._stop_asked = False
        self._forced = asyncio.Event()
        self._ready = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._background: asyncio.Task[StopReport] | None = None
        self._opening: asyncio.Task[None] | None = None
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
        parts = self._servers.together(self._streams)
        room = Room(self._concurrency, settings.prefetch, len(parts))
        self._shards = [
            Shard(
                streams,
                servers=self._servers,
                who=(self._group, self._consumer_id),
                settings=settings,
                room=room,
                table=self._table,
                tallies=self._tallies,
                on_error=self._tell,
            )
            for streams in parts
        ]
        self._shard_of = {stream: shard for shard in self._shards for stream in shard.streams}
        self._runner = Runner(
            Invoker(handler, self, self._threads),
            on_exhausted=None
            if on_exhausted is None
            else Invoker(on_exhausted, self, self._threads, name="on_exhausted"),
            acknowledge=self._shards[0].acknowledger.add if len(self._shards) == 1 else self._acknowledge_soon,
            table=self._table,
            dispatcher=self._dispatcher,
            tallies=self._tallies,
            settings=settings,
            custody=self,
        )
        wake = self._shards[0].intake.wake if len(self._shards) == 1 else self._wake_shards
        self._pool = ConcurrencyPool(self._concurrency, self._runner, on_free=wake)
        for shard in self._shards:
            shard.intake.connect(
                self._pool,
                shard.acknowledger,
                average_s=lambda: self._runner.average_s,
                held=lambda stream: len(self._table.of(stream)),
                wake_others=wake,
            )
        self._heartbeat = Heartbeat(
            self._servers,
            self._table,
            group=self._group,
            consumer_id=self._consumer_id,
            settings=settings,
            on_lost=self._lease_lost_in_thread,
            on_error=self._heartbeat_failed_in_thread,
        )
        self._shutdown = Shutdown(
            self._shards,
            pool=self._pool,
            heartbeat=self._heartbeat,
            servers=self._servers,
            tallies=self._tallies,
            grace_s=settings.grace_s,
            forced=self._forced,
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
        if stop_event is not None and not inspect.iscoroutinefunction(getattr(stop_event, "wait", None)):
            raise ConfigurationError("stop_event must be an asyncio.Event: waiting for another kind blocks the loop")
        self._lifecycle.start()
        self._loop = asyncio.get_running_loop()
        engine = asyncio.create_task(self._live(), name=f"conquiet-engine-{self._consumer_id}")
        watcher = None if stop_event is None else asyncio.create_task(self._watch(stop_event))
        try:
            return await outlast(engine, stop=self._request_stop, force=self._forced.set)
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
        if isinstance(streams, str):
            raise ConfigurationError("withhold takes a list of stream names, not a single one")
        for shard in self._shards:
            shard.withhold(streams)

    async def wait_for_active_tasks(self) -> None:
        """Return when no handler is running any more and what they finished is acknowledged."""
        await self._pool.wait_quiet()
        await asyncio.gather(*(shard.acknowledger.flush() for shard in self._shards))

    def health(self) -> Health:
        """Tell how it is doing, without asking the server."""
        ended = self._runner.last_end
        return Health(
            status=self._lifecycle.status,
            connected=all(shard.read_wire.is_open for shard in self._shards),
            progress_age_s=time.monotonic() - min(shard.intake.progress(ended) for shard in self._shards),
            active=self._pool.active,
            in_hand=len(self._table),
            unacknowledged=sum(shard.acknowledger.unconfirmed for shard in self._shards),
            lease_alive=self._heartbeat.is_alive,
            lag={stream: lag for shard in self._shards for stream, lag in shard.intake.lag.items()},
            streams={stream: tally.counts for stream, tally in self._tallies.items()},
            reconnects=sum(shard.reconnects for shard in self._shards),
            slots=self._concurrency,
            patience_s=3.0 + self._settings.slice_ms / 1000,
        )

    async def __aenter__(self) -> Self:
        """Start in the background; return once it consumes."""
        self._background = asyncio.create_task(self.start())
        await until_ready(self._background, self._ready)
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
        await self._shard_of[message.stream].acknowledger.acknowledge(message)

    async def extend(self, message: RuntimeMessage) -> bool:
        """See ``MessageContext.extend``."""
        now = time.monotonic()
        ours = await self._shard_of[message.stream].extend(message)
        if ours:
            message.leased_at = now
        elif not (message.lease_lost or message.acknowledged or message.leaving):
            message.lease_lost = True
            observe_lease_lost(message.stream)
            self._tell(lease_lost(message), message)
        return ours

    # ------------------------------------------------------------ the life

    async def _live(self) -> StopReport:
        failure: BaseException | None = None
        self._dispatcher.start()
        cutting = asyncio.create_task(self._shutdown.cut_when_forced(), name="conquiet-cutting")
        try:
            self._opening = asyncio.create_task(self._open(), name="conquiet-opening")
            await self._opening
            self._pool.start()
            for shard in self._shards:
                shard.acknowledger.start()
            self._heartbeat.start()
            if self._lifecycle.is_stopping:
                self._begin_stop()
            self._ready.set()
            await self._fetch()
        except asyncio.CancelledError:
            if not self._lifecycle.is_stopping:
                raise
            # Told to stop before anything was read: the opening was broken off, and this is the end.
        except WireLostError as lost:
            about = {"stream": self._streams[0], "group": self._group, "command": "XGROUP CREATE"}
            failure = translate(lost.reason, **about, sent=isinstance(lost.reason, ReadOnlyError))
            failure.__cause__ = lost.reason
        except QueueError as error:
            failure = error
        finally:
            self._lifecycle.stop()
            self.report = report = await self._shutdown.run()
            if self._executor is not None:
                # Not waited for: a thread cannot be broken off. What still runs in one is in the report.
                self._executor.shutdown(wait=False, cancel_futures=True)
            self._lifecycle.finish()
            if failure is not None:
                self._tell(failure)
            await self._dispatcher.close(timeout_s=self._shutdown.patience_s)
            cutting.cancel()
            await asyncio.gather(cutting, return_exceptions=True)
        if failure is not None:
            raise failure
        return report

    async def _open(self) -> None:
        for shard in self._shards:
            await shard.open()

    async def _fetch(self) -> None:
        """Fetch for all shards until stopped. One that fails ends the others, in order."""
        tasks = [asyncio.create_task(shard.intake.run(), name="conquiet-intake") for shard in self._shards]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self._begin_stop()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _watch(self, stop_event: asyncio.Event) -> None:
        await stop_event.wait()
        self._request_stop()

    def _request_stop(self) -> None:
        self._lifecycle.stop()
        self._on_loop(self._begin_stop)

    def _begin_stop(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        self._pool.hold()
        for shard in self._shards:
            shard.stop()

    def _acknowledge_soon(self, message: RuntimeMessage) -> None:
        self._shard_of[message.stream].acknowledger.add(message)

    def _wake_shards(self) -> None:
        for shard in self._shards:
            shard.intake.wake()

    def _threads(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._concurrency, thread_name_prefix="conquiet-handler")
        return self._executor

    # ------------------------------------------------------------ news from elsewhere

    def _tell(self, error: BaseException, message: RuntimeMessage | None = None) -> None:
        logger.warning("engine error", extra={"error": type(error).__name__, "stream": getattr(error, "stream", None)})
        self._dispatcher.emit(EngineError(error, message))

    def _on_loop(self, call: Any, *args: Any) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is nobody left to tell
                self._loop.call_soon_threadsafe(call, *args)

    def _lease_lost_in_thread(self, message: RuntimeMessage) -> None:
        observe_lease_lost(message.stream)
        self._on_loop(self._tell, lease_lost(message), message)

    def _heartbeat_failed_in_thread(self, error: RedisError | OSError) -> None:
        told = translate(error, stream=", ".join(self._streams), group=self._group, command="XCLAIM")
        told.__cause__ = error
        self._on_loop(self._tell, told)
