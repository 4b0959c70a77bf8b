"""The runtime engine: fetch, execute, settle, report. SPEC(002).

Policy is not here. An ``Executor`` decides how each message is settled: a user's handler (``Consumer``) or the
processor.

A message is in exactly one of these places at any moment:

    in the stream ──read──▶ waiting for a worker ──▶ executing ──settlement──▶ acknowledged, moved or released
                                 │                      │
                                 │ stop: released       └─ failed, cancelled or process killed:
                                 ▼                         stays pending until it is stale and claimed
                      pending, uncharged, any consumer may claim it

This module starts the engine, accepts stop requests and reports health. ``assembly`` constructs the parts, ``shutdown``
ends them. A ``Shard`` fetches: one for a server, one per slot of a Redis Cluster.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any

from conquiet.core.background import BackgroundWorker, require_stop_event, stop_on
from conquiet.core.identity import stable_consumer_id
from conquiet.core.lifecycle import AsyncLifecycle, Status
from conquiet.core.log import FactLogger
from conquiet.core.settlement import Settlement
from conquiet.core.task_cancellation import wait_shielded
from conquiet.core.validation import require_positive, require_text
from conquiet.errors import ConfigurationError, QueueError
from conquiet.metrics.outages import OutageWatch, is_reported
from conquiet.queue.housekeeping import StreamHousekeeper
from conquiet.redis_transport.async_connection import ConnectionLostError
from conquiet.redis_transport.client import AnyRedis
from conquiet.redis_transport.errors import ReadOnlyError, translate
from conquiet.redis_transport.topology import known_address, topology_of
from conquiet.runtime.assembly import assemble
from conquiet.runtime.engine_events import Callback, EngineError, EventDispatcher
from conquiet.runtime.executor import Executor
from conquiet.runtime.health import EngineHealth, StopReport
from conquiet.runtime.heartbeat import HeartbeatCallbacks
from conquiet.runtime.message import RuntimeMessage
from conquiet.runtime.parts import EngineParts
from conquiet.runtime.settings import RuntimeSettings
from conquiet.runtime.shard import Shard
from conquiet.runtime.shutdown import Shutdown

logger = FactLogger(__name__)


class Engine(BackgroundWorker):
    """Reads streams as a member of a group and executes their messages, at most ``concurrency`` concurrently.

    Args:
        streams: Keys of the streams. They are served fairly.
        redis: A client, plain or for a Redis Cluster. The engine opens separate connections to the same server.
        executor: Runs each message and returns its settlement.
        concurrency: Maximum number of messages executed concurrently.
        group: The consumer group.
        consumer_id: Name of the engine in the group. Default: derived from host name and process id.
        settings: Times and limits.
        events: Calls the callbacks; its own by default.
    """

    def __init__(
        self,
        *,
        streams: tuple[str, ...],
        redis: AnyRedis,
        executor: Executor,
        concurrency: int,
        group: str,
        consumer_id: str | None,
        settings: RuntimeSettings,
        events: EventDispatcher | None = None,
    ) -> None:
        self._streams = streams
        self._executor = executor
        self._concurrency = require_positive("concurrency", concurrency)
        self.group = require_text("group", group)
        if consumer_id is not None:
            require_text("consumer_id", consumer_id)
        self._consumer_id = consumer_id or stable_consumer_id()
        self._settings = settings
        self._topology = topology_of(redis, timeout_s=settings.heartbeat_timeout_s)
        self._lifecycle = AsyncLifecycle("this Consumer")
        self._dispatcher = EventDispatcher() if events is None else events
        self._housekeeper = StreamHousekeeper(
            redis, streams, group=group, retention=settings.retention, messages_read=self.messages_read
        )
        self._lease_outage = OutageWatch(
            "Redis", "nothing is read, and leases are not renewed: other workers may claim running messages"
        )
        self.forced = asyncio.Event()
        self.consuming = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[None] | None = None
        self.report: StopReport | None = None
        self._assemble()

    def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum number of concurrent handlers before the start. Used by ``conquiet worker``."""
        self._lifecycle.require_new("concurrency")
        self._concurrency = require_positive("concurrency", concurrency)
        self._assemble()

    def _assemble(self) -> None:
        parts = EngineParts(
            streams=self._streams,
            group=self.group,
            consumer_id=self._consumer_id,
            concurrency=self._concurrency,
            settings=self._settings,
            topology=self._topology,
            executor=self._executor,
            events=self._dispatcher,
            on_error=self._report,
            stop=self._stop_with,
        )
        callbacks = HeartbeatCallbacks(
            lost=lambda message: self._on_loop(self._leases.report_lost, message),
            failed=self._heartbeat_failed_in_thread,
            succeeded=self._lease_outage.succeeded,
            name_taken=lambda error: self._on_loop(self._stop_with, error),
        )
        assembled = assemble(parts, health=self.health, callbacks=callbacks)
        self._table, self._stats, self._pace, self._outage = parts.table, parts.stats, parts.pace, parts.outage
        self._leases, self._settler, self._pool = assembled.leases, assembled.settler, assembled.pool
        self._shards, self._heartbeat = assembled.shards, assembled.heartbeat
        self._shutdown = Shutdown(parts, assembled, self.forced)

    @property
    def consumer_id(self) -> str:
        """Name of the engine in the group."""
        return self._consumer_id

    name = consumer_id

    @property
    def status(self) -> Status:
        """The lifecycle status of the engine."""
        return self._lifecycle.status

    def is_own_handler(self) -> bool:
        """Return True if a handler or an async callback is the caller: it cannot wait for the end of the engine."""
        return self._pool.owns_current_task() or self._dispatcher.owns_current_task()

    @property
    def active_tasks(self) -> int:
        """Handlers running now."""
        return self._pool.active

    @property
    def abandoned(self) -> int:
        """Handlers that did not end within the grace period."""
        return 0 if self.report is None else len(self.report.abandoned)

    def on(self, event: str, callback: Callback) -> None:
        """Call ``callback(event)`` for each ``started``, ``succeeded``, ``failed`` or ``error`` event.

        Plain callbacks are called inline and should be quick. Async callbacks are called in order, in a separate task.
        """
        self._dispatcher.on(event, callback)

    def off(self, event: str, callback: Callback) -> None:
        """End a subscription of ``on``: no call begins after this. Raises ``ConfigurationError`` if there is none."""
        self._dispatcher.off(event, callback)

    async def run(self) -> StopReport:
        """Consume until ``stop()`` is called; the same as ``start()``."""
        return await self.start()

    async def start(self, stop_event: asyncio.Event | None = None) -> StopReport:
        """Consume until ``stop()`` is called or ``stop_event`` is set; then stop in order and return the report.

        Cancelling the caller's task counts as a stop: the engine ends in order, then the cancellation is raised.
        A second cancellation forces the stop.

        Raises:
            GroupMissingError: A group went away while running, and ``recreate_group`` is not set.
            QueueError: The server could not be reached, at the start or for too long.
            LifecycleError: It was started or stopped before. An engine is started once.
        """
        require_stop_event(stop_event)
        self._lifecycle.start()
        try:
            self._before_start()
            self._loop = asyncio.get_running_loop()
            if self._lifecycle.is_forced:  # a signal or another thread called stop() before there was a loop to wake
                self.forced.set()
            async with stop_on(stop_event, self.end):
                engine = asyncio.create_task(self._live(), name=f"conquiet-engine-{self._consumer_id}")
                return await wait_shielded(engine, stop=self.end, force=self.forced.set)
        finally:
            self._lifecycle.finish()

    def stop(self) -> None:
        """Request the stop: nothing new is read or started, running handlers get the grace period.

        A second call cancels the running handlers and, after half a second, aborts the connections; a plain function
        in a thread continues. Safe in a signal handler and from any thread: it assigns and wakes the loop, and takes no
        lock.
        """
        if self._lifecycle.request_stop():
            self._on_loop(self.forced.set)
        self._on_loop(self._begin_stop)

    def pause_streams(self, streams: Collection[str]) -> None:
        """Read nothing from these streams until called again without them. Call it on the event loop.

        Messages that were already read are still handled.
        """
        if isinstance(streams, str):
            raise ConfigurationError("pause_streams takes a list of stream names, not a single one")
        for shard in self._shards:
            shard.pause_streams(streams)

    async def settle(self, message: RuntimeMessage, settlement: Settlement) -> None:
        """Settle a message that was kept pending before.

        Raises:
            QueueError: The server cannot be reached or returns an error. The message stays pending.
        """
        await self._settler.settle(message, settlement)

    async def wait_for_active_tasks(self) -> None:
        """Return when no handler is running and all finished messages are acknowledged."""
        await self._pool.wait_idle()
        await self._leases.flush()

    def health(self) -> EngineHealth:
        """Report the state of the engine, without a call to the server. Never raises; safe from any thread."""
        ended = self._pace.last_end
        lag: dict[str, int | None] = {}
        for shard in self._shards:
            lag.update(shard.fetcher.lag)  # in one step: the event loop may change it meanwhile
        return EngineHealth(
            status=self._lifecycle.status,
            handled=sum(stats.succeeded + stats.failed for stats in self._stats.values()),
            connected=all(shard.connection.is_open for shard in self._shards),
            progress_age_s=time.monotonic() - min(shard.fetcher.progress(ended) for shard in self._shards),
            active=self._pool.active,
            in_flight=len(self._table),
            unacknowledged=sum(shard.acknowledger.unconfirmed for shard in self._shards),
            lease_alive=self._heartbeat.is_alive,
            lag=lag,
            streams={stream: stats.counts for stream, stats in self._stats.items()},
            reconnects=sum(shard.reconnects for shard in self._shards),
            concurrency=self._concurrency,
            progress_timeout_s=3.0 + self._settings.slice_ms / 1000,
            paused=self._outage.is_on,
        )

    def messages_read(self, stream: str) -> int:
        """Return how many messages of a stream were read or claimed so far. Safe from any thread."""
        return self._stats[stream].read + self._stats[stream].claimed

    async def close(self) -> None:
        """Stop in order, wait for the end, and release the connections.

        Called by a handler or a callback it only stops.
        """
        self.end()
        if self.is_own_handler():
            return
        await self._lifecycle.wait_ended()
        await self._topology.close()

    def end(self) -> None:
        """Stop in order, without counting as a call of ``stop()``: a later ``stop()`` does not force."""
        self._lifecycle.stop()
        self._on_loop(self._begin_stop)

    def _enter(self) -> tuple[Coroutine[Any, Any, StopReport], asyncio.Event]:
        return self.start(), self.consuming

    def _before_start(self) -> None:
        """Run checks that are only possible at the start. A hook for subclasses."""

    async def _after_end(self) -> None:
        """Release the resources of a subclass. A hook for subclasses."""

    async def _live(self) -> StopReport:
        failure: BaseException | None = None
        about = {"streams": ", ".join(self._streams), "group": self.group, "consumer_id": self._consumer_id}
        logger.info("worker starts: consumer %(consumer_id)s of %(streams)s", **about, concurrency=self._concurrency)
        self._dispatcher.start()
        aborting = asyncio.create_task(self._shutdown.abort_when_forced(), name="conquiet-aborting")
        try:
            self._opening = asyncio.create_task(self._open(), name="conquiet-opening")
            await self._opening
            # Not before the groups exist: entries that all groups have handled are trimmed.
            self._housekeeper.start()
            self._pool.start()
            self._heartbeat.start()
            if self._lifecycle.is_stopping:
                self._begin_stop()
            self.consuming.set()
            logger.info("worker ready: consumer %(consumer_id)s of %(streams)s", **about)
            await self._fetch()
        except asyncio.CancelledError:
            if not self._lifecycle.is_stopping:
                raise
            # Stopped before anything was read: ``_begin_stop`` cancelled the opening.
        except ConnectionLostError as lost:
            command = {"stream": self._streams[0], "group": self.group, "command": "XGROUP CREATE"}
            failure = translate(lost.reason, **command, sent=isinstance(lost.reason, ReadOnlyError))
        except QueueError as error:
            failure = error
        finally:
            self._lifecycle.stop()
            facts = {"running": self._pool.active, "grace_s": self._settings.grace_s}
            logger.info("worker draining: %(running)s handlers have %(grace_s)s s to end", **facts, **about)
            self.report = report = await self._shutdown.run()
            self._outage.close()
            self._lease_outage.close()
            await self._housekeeper.aclose()
            await self._after_end()
            if failure is not None:
                logger.failure(logging.ERROR, "worker ends because of an error", failure, **about)
                self._dispatcher.emit(EngineError(failure, None))
            await self._dispatcher.close(timeout_s=self._shutdown.end_timeout_s)
            aborting.cancel()
            await asyncio.gather(aborting, return_exceptions=True)
        if failure is not None:
            raise failure
        return report

    async def _open(self) -> None:
        for shard in self._shards:
            await shard.open()

    async def _fetch(self) -> None:
        """Fetch for all shards until stopped. If one shard fails, the others are stopped in order."""
        for shard in self._shards:
            # Without acknowledgements everything would run again elsewhere, so the engine stops.
            shard.acknowledger.start().add_done_callback(partial(_stop_if_failed, shard))
        tasks = [asyncio.create_task(shard.fetcher.run(), name="conquiet-fetcher") for shard in self._shards]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self._begin_stop()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def _stop_with(self, error: BaseException) -> None:
        """Stop the engine with this error."""
        for shard in self._shards:
            shard.fail(error)
        self._begin_stop()

    def _begin_stop(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        self._pool.pause()
        for shard in self._shards:
            shard.stop()

    def _report(self, error: BaseException, message: RuntimeMessage | None = None) -> None:
        if not is_reported(error):
            named = None if message is None else message.id
            facts = {"group": self.group, "stream": getattr(error, "stream", None), "message_id": named}
            logger.failure(logging.WARNING, "engine error", error, **facts)
        self._dispatcher.emit(EngineError(error, message))

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(call, *args)

    def _heartbeat_failed_in_thread(self, error: QueueError) -> None:
        self._lease_outage.failed(error, address=known_address(self._topology, self._streams[0]))
        self._on_loop(self._report, error)


def _stop_if_failed(shard: Shard, failed: "asyncio.Future[QueueError]") -> None:
    if not failed.cancelled():
        shard.fail(failed.result())
