"""A processor for one partitioned stream. It reads new partitions while it runs.

There is one ``Processor`` for the partitions at the start, and one more after each growth. They share the handlers and
one concurrency limit.

See docs/decisions/0051.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from conquiet.core.lifecycle import Status
from conquiet.core.log import FactLogger
from conquiet.core.signatures import takes_keywords_of
from conquiet.core.task_cancellation import cancel_from_any_thread, is_ending
from conquiet.errors import ConfigurationError, LifecycleError, QueueError
from conquiet.processor.context import JobContext
from conquiet.processor.middleware import Middleware, Next
from conquiet.processor.partition_layout import PartitionLayout
from conquiet.processor.partition_mover import PartitionMover
from conquiet.processor.partitioned_emitter import PartitionedEmitter
from conquiet.processor.partitioned_stream import PartitionedStream
from conquiet.processor.partitions import partition_name, require_partitions, require_stream_name
from conquiet.processor.policy import require_event
from conquiet.processor.processor import Processor
from conquiet.processor.processor_base import ProcessorBase
from conquiet.processor.settings import ProcessorSettings
from conquiet.redis_transport.client import AnyRedis
from conquiet.redis_transport.errors import RedisError
from conquiet.runtime.engine_events import Callback
from conquiet.runtime.health import NOT_STARTED, EngineHealth
from conquiet.runtime.settings import RuntimeSettings

logger = FactLogger(__name__)

_REFRESHES = 2
"""Periods of ``refresh_s`` between two reads of the number of partitions."""

F = TypeVar("F", bound=Callable[..., Any])


class PartitionedProcessor(ProcessorBase):
    """Runs a handler per event for one stream with many partitions. The guarantees of ``Processor`` apply.

    Order by key holds, even while the number of partitions grows.

    Args:
        redis: A ``redis.asyncio.Redis`` or ``redis.Redis``. Separate connections to the same server are opened.
        stream: Name of the stream.
        partitions: Minimum number of partitions. A stream with fewer grows at the start; further partitions are used.
        concurrency: Maximum number of concurrent handlers on this host, over all partitions. With batch handlers the
            limit applies to each set of partitions: between a growth and the next restart there are two.
        group: The consumer group.
        consumer_id: Name of this consumer in it. Default: derived from host name and process id.
        settings: The processor's settings.
        runtime: The engine's settings.

    Attributes:
        partitions: Number of partitions that this processor reads.
    """

    def __init__(
        self,
        redis: AnyRedis,
        stream: str,
        *,
        partitions: int = 16,
        concurrency: int = 1,
        group: str = "processor",
        consumer_id: str | None = None,
        settings: ProcessorSettings | None = None,
        runtime: RuntimeSettings | None = None,
    ) -> None:
        self._stream = require_stream_name(stream)
        self._least = require_partitions(partitions)
        super().__init__(redis, concurrency=concurrency, group=group, consumer_id=consumer_id, settings=settings)
        self._options: dict[str, Any] = {
            "concurrency": concurrency,
            "group": group,
            "consumer_id": self.consumer_id,
            "settings": self._settings,
            "runtime": runtime,
        }
        self._emitter = PartitionedEmitter(self._client, stream, self._settings, jobs=self._recorder)
        self._layout = PartitionLayout(self._client, stream)
        self._setup: list[Callable[[Processor], object]] = []
        self._callbacks: list[tuple[str, Callback]] = []
        self._free = asyncio.Semaphore(self._concurrency)
        self._running: dict[asyncio.Task[Any], Processor] = {}
        self.partitions = 0
        self._has_batches = False
        self._ready = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    @takes_keywords_of(Processor.handler)
    def handler(self, event: str, **options: Any) -> Callable[[F], F]:
        """Register the decorated function for an event. Options as for ``Processor.handler``."""
        self._lifecycle.require_new("handlers")
        require_event(event)  # checked here, because a bare @processor.handler would never register
        self._has_batches = self._has_batches or options.get("batch") is not None

        def register(function: F) -> F:
            self._setup.append(lambda processor: processor.handler(event, **options)(function))
            return function

        return register

    def add_middleware(self, middleware: Middleware) -> None:
        """See ``Processor.add_middleware``."""
        self._lifecycle.require_new("middlewares")
        self._setup.append(lambda processor: processor.add_middleware(middleware))

    def on(self, event: str, callback: Callback) -> None:
        """Subscribe to the events of the engines before the start; see ``runtime.Consumer.on``."""
        self._lifecycle.require_new("callbacks")
        self._callbacks.append((event, callback))

    def off(self, event: str, callback: Callback) -> None:
        """End a subscription of ``on``, at any time. Raises ``ConfigurationError`` if there is none."""
        if (event, callback) not in self._callbacks:
            raise ConfigurationError("this callback is not subscribed to this event")
        self._callbacks.remove((event, callback))
        for processor in self._running.values():
            processor.off(event, callback)

    async def run(self) -> None:
        """Process until ``stop()``. New partitions are read within twice ``refresh_s`` after a growth.

        Raises:
            ConfigurationError: No handler is registered.
            QueueError: The server could not be reached, at the start or for too long.
        """
        self._lifecycle.start()
        await self._run_shielded(self._live(), force=self._force)

    async def _live(self) -> None:
        self._work = asyncio.create_task(self._read_partitions(), name="conquiet-partitions")
        if self._lifecycle.is_stopping:  # stopped before there was a task to cancel
            self._work.cancel()
        try:
            await self._work
        except asyncio.CancelledError:
            if not self._lifecycle.is_stopping or is_ending(asyncio.current_task()):
                raise
        finally:
            for processor in self._running.values():
                processor.end()
            results = await asyncio.gather(*self._running, return_exceptions=True)
            for processor in self._running.values():
                await processor.close()
        for result in results:
            # A processor that was stopped before it started refuses to start: that is the requested end.
            if isinstance(result, BaseException) and not isinstance(result, LifecycleError):
                raise result

    async def _read_partitions(self) -> None:
        """Start the processors, and check for growth until one of them ends. A stop cancels this."""
        layout = await self._layout.read()
        if layout.to_read < self._least:
            layout = await self._layout.grow(self._least)
        self._cover(layout.to_read)
        self._ready.set()
        period_s = _REFRESHES * self._settings.refresh_s
        while True:
            done, _ = await asyncio.wait(self._running, timeout=period_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            await self._follow_growth()

    async def _follow_growth(self) -> None:
        try:
            layout = await self._layout.read()
            if layout.previous is not None or layout.following is not None:
                await self._layout.finish_growth()
        except (QueueError, RedisError, OSError) as error:
            logger.warning(
                "partitions of stream %(stream)s could not be read (%(error)s); read again in %(next_try_s)s s",
                stream=self._stream,
                error=type(error).__name__,
                next_try_s=_REFRESHES * self._settings.refresh_s,
            )
            return
        if layout.to_read > self.partitions:
            facts = {"stream": self._stream, "before": self.partitions, "partitions": layout.to_read}
            logger.info("stream %(stream)s has grown from %(before)s to %(partitions)s partitions", **facts)
            self._cover(layout.to_read)

    def _cover(self, count: int) -> None:
        """Start a processor for partitions that have none."""
        streams = [partition_name(self._stream, index) for index in range(self.partitions, count)]
        processor = Processor(self._redis, streams, **self._options)
        if not self._has_batches:  # middlewares are not allowed with batch handlers
            processor.add_middleware(self._limit)
        for register in self._setup:
            register(processor)
        for event, callback in self._callbacks:
            processor.on(event, callback)
        processor._poll_listeners.append(PartitionMover(self._client, self._stream, self._layout))  # noqa: SLF001 - same package
        self.partitions = count
        self._running[asyncio.create_task(processor.run(), name=f"conquiet-partitions-{count}")] = processor

    async def _limit(self, ctx: JobContext, call_next: Next) -> object:
        async with self._free:
            return await call_next(ctx)

    def stop(self) -> None:
        """Request the stop; a second call forces it. See ``runtime.Consumer.stop``. Safe in a signal handler."""
        self._lifecycle.request_stop()
        for processor in list(self._running.values()):
            processor.stop()
        cancel_from_any_thread(self._work)

    def end(self) -> None:
        """Stop in order, without counting as a call of ``stop()``: a later ``stop()`` does not force."""
        if self._lifecycle.status is not Status.NEW:
            self._lifecycle.stop()
            cancel_from_any_thread(self._work)

    def _force(self) -> None:
        for _ in range(2):  # the second call forces
            self.stop()

    def is_own_handler(self) -> bool:
        """Return True if a handler of this processor is the caller: it cannot wait for the end of the processor."""
        return any(processor.is_own_handler() for processor in self._running.values())

    def _enter(self) -> tuple[Coroutine[Any, Any, None], asyncio.Event]:
        return self.run(), self._ready

    @property
    def status(self) -> Status:
        """The lifecycle status."""
        return self._lifecycle.status

    @property
    def abandoned(self) -> int:
        """Handlers that did not end within the grace period."""
        return sum(processor.abandoned for processor in self._running.values())

    def health(self) -> EngineHealth:
        """Return the health of the first engine that is not ready, without a call to the server. Never raises."""
        states = [processor.health() for processor in list(self._running.values())]
        found = next((state for state in states if not state.ready), states[0]) if states else NOT_STARTED
        return replace(found, status=self._lifecycle.status, handled=sum(state.handled for state in states))

    @property
    def as_stream(self) -> PartitionedStream:
        """The partitions as one stream, for operators: pause, resume, dead letters, backlog, growth."""
        return PartitionedStream(self._client, self._stream)
