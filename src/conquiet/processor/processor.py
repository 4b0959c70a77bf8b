"""The processor: handlers by event, over the runtime engine.

This file is its life and its face: registering, starting, stopping, and what an operator asks of it. What
happens to a message is in ``execution``, what becomes of it in ``policy``.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from redis.exceptions import RedisError

from conquiet.errors import ConfigurationError, LifecycleError, MalformedMessageError
from conquiet.kernel.functions import refuse_generator_function
from conquiet.kernel.identity import stable_consumer_id
from conquiet.kernel.lifecycle import Status
from conquiet.kernel.validation import require_positive, require_text
from conquiet.processor.burials import Burials
from conquiet.processor.dead_letters import DeadLetters
from conquiet.processor.delays import Mover, Tick
from conquiet.processor.emitter import Emitter
from conquiet.processor.execution import Execution
from conquiet.processor.jobs import JobRecorder, Jobs
from conquiet.processor.keys import Keys, keys_of
from conquiet.processor.middleware import Middleware
from conquiet.processor.pauses import Pauses
from conquiet.processor.plans import Emitted, NewMessage
from conquiet.processor.policy import RateLimit, RetryPolicy, require_event
from conquiet.processor.routes import Route
from conquiet.processor.settings import HandlerSettings, ProcessorSettings
from conquiet.processor.settlement import Settler
from conquiet.queue.client import AnyRedis, clone_async
from conquiet.runtime.consumer import Consumer
from conquiet.runtime.events import Callback, EngineError
from conquiet.runtime.health import NOTHING_DONE, Health, StopReport
from conquiet.runtime.settings import RuntimeSettings, require_streams

_OUR_ADDITIONS = 4_096
"""Most bytes by which a message grows on its way: group, times, ids."""

F = TypeVar("F", bound=Callable[..., Any])


class Processor:
    """Runs a handler per event, with retries, delays, dead letters and pauses.

    Args:
        redis: A ``redis.asyncio.Redis`` or ``redis.Redis``. It stays as it is; connections of our own are opened.
        streams: Keys of the streams. Messages are emitted to the first unless they name another.
        concurrency: Most handlers at once on this host.
        group: The consumer group.
        consumer_id: Our name in it; made from host and process id if left out.
        settings: The processor's settings.
        runtime: The engine's settings. Priorities of streams are among them.
    """

    def __init__(
        self,
        redis: AnyRedis,
        streams: Sequence[str],
        *,
        concurrency: int = 1,
        group: str = "processor",
        consumer_id: str | None = None,
        settings: ProcessorSettings | None = None,
        runtime: RuntimeSettings | None = None,
    ) -> None:
        self._streams = require_streams(streams)
        self._keys = {stream: keys_of(stream) for stream in self._streams}
        self._concurrency = require_positive("concurrency", concurrency)
        self._group = require_text("group", group)
        self._consumer_id = stable_consumer_id() if consumer_id is None else require_text("consumer_id", consumer_id)
        self._settings = ProcessorSettings() if settings is None else settings
        self._runtime = RuntimeSettings() if runtime is None else runtime
        self._redis = redis
        self._client = clone_async(redis)
        self._handlers: dict[str, HandlerSettings] = {}
        self._middlewares: list[Middleware] = []
        self._callbacks: list[tuple[str, Callback]] = []
        self._executor: ThreadPoolExecutor | None = None
        self._burials: Burials | None = None
        ttl_s = self._settings.job_ttl_s
        self._recorder = None if ttl_s is None else JobRecorder(self._client, ttl_s=ttl_s)
        self._emitter = Emitter(self._client, self._streams[0], self._settings, jobs=self._recorder)
        self._pauses = Pauses(self._client)
        self._consumer: Consumer | None = None
        self._execution: Execution | None = None
        self._mover: Mover | None = None
        self._withheld: frozenset[str] = frozenset()
        self._stop_asked = False

    # ------------------------------------------------------------ before the start

    def set_concurrency(self, concurrency: int) -> None:
        """Change the most handlers at once on this host: what ``conquiet worker --concurrency`` does."""
        if self._consumer is not None:
            raise LifecycleError("this Processor was started: its concurrency can only be set before")
        self._concurrency = require_positive("concurrency", concurrency)

    def handler(
        self,
        event: str,
        *,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        concurrency: int | None = None,
        rate: RateLimit | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated function for an event: ``async def send(ctx)``, or a plain one, run in a thread.

        Args:
            event: The event; each has one handler.
            retry: When to try again; the processor's policy if left out.
            timeout: Seconds a run may take. A plain function that takes longer is reported, and waited for.
            concurrency: Most runs at once on this host.
            rate: Most starts in a time, over all hosts.
        """
        if self._consumer is not None:
            raise LifecycleError("handlers are registered before the start")
        require_event(event)  # now, for who writes @processor.handler without an event: nobody would register then

        def register(function: F) -> F:
            if event in self._handlers:
                raise ConfigurationError(f"event {event!r} has a handler already")
            self._handlers[event] = HandlerSettings(
                event=event,
                function=function,
                retry=self._settings.retry if retry is None else retry,
                timeout_s=timeout,
                concurrency=concurrency,
                rate=rate,
            )
            return function

        return register

    def add_middleware(self, middleware: Middleware) -> None:
        """Run ``async def middleware(ctx, call_next)`` around every handler; the first added is the outermost."""
        if self._consumer is not None:
            raise LifecycleError("middlewares are added before the start")
        if not callable(middleware):
            raise ConfigurationError("a middleware must be callable: async def middleware(ctx, call_next)")
        refuse_generator_function("a middleware", middleware)
        self._middlewares.append(middleware)

    def on(self, event: str, callback: Callback) -> None:
        """Hear the engine's events; see ``runtime.Consumer.on``. ``failed`` comes for each failed attempt."""
        if self._consumer is not None:
            self._consumer.on(event, callback)
        else:
            self._callbacks.append((event, callback))

    # ------------------------------------------------------------ the life

    async def start(self, stop_event: asyncio.Event | None = None) -> StopReport:
        """Process until ``stop()``; see ``runtime.Consumer.start``. Due messages are moved meanwhile."""
        too_late = self._stop_asked
        consumer, mover = self._assemble()
        try:
            await mover.start()
            return await consumer.start(stop_event)
        except LifecycleError:
            if too_late or not self._stop_asked:
                raise
            return NOTHING_DONE  # told to stop before the engine had begun
        finally:
            await self._end(mover)

    def stop(self) -> None:
        """Ask for the end; see ``runtime.Consumer.stop``. Safe in a signal handler."""
        self._stop_asked = True
        if self._consumer is not None:
            self._consumer.stop()

    async def wait_for_active_tasks(self) -> None:
        """Return when no handler is running any more and what they finished is acknowledged."""
        if self._consumer is not None:
            await self._consumer.wait_for_active_tasks()

    async def close(self) -> None:
        """Close our connections. A processor that only emits needs nothing else, and may emit again in another loop."""
        with contextlib.suppress(RedisError, OSError):
            await self._client.aclose()
        self._emitter.leave_loop()

    async def __aenter__(self) -> Self:
        """Start in the background; return once it consumes."""
        consumer, mover = self._assemble()
        try:
            await mover.start()
            await consumer.__aenter__()
        except BaseException:
            await self._end(mover)
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop in order and close. A processor that died meanwhile raises its error here."""
        assert self._consumer is not None  # noqa: S101 - entered
        assert self._mover is not None  # noqa: S101 - the same
        try:
            await self._consumer.__aexit__(kind, error, trace)
        finally:
            await self._end(self._mover)
            await self.close()

    @property
    def status(self) -> Status:
        """Where its life stands."""
        return Status.NEW if self._consumer is None else self._consumer.status

    @property
    def consumer_id(self) -> str:
        """Our name in the group."""
        return self._consumer_id

    def health(self) -> Health:
        """Tell how the engine is doing, without asking the server."""
        if self._consumer is None:
            raise LifecycleError("this Processor has not been started")
        return self._consumer.health()

    # ------------------------------------------------------------ messages

    async def emit(self, event: str, data: Mapping[str, Any] | None = None, **options: Any) -> Emitted:
        """Emit one message; see ``Emitter.emit`` for the options: id, delay, at, stream, max_attempts, debounce."""
        return await self._emitter.emit(event, data, **options)

    async def emit_many(self, messages: Iterable[NewMessage], *, stream: str | None = None) -> list[Emitted]:
        """Emit many messages, atomically per chunk; see ``Emitter.emit_many``."""
        return await self._emitter.emit_many(messages, stream=stream)

    # ------------------------------------------------------------ for operators

    async def pause(self, stream: str | None = None, *, event: str | None = None) -> bool:
        """Pause a stream (the first one if none is named) or one event of it, on all hosts, until ``resume``."""
        return await self._pauses.pause(self._first_or(stream), event)

    async def resume(self, stream: str | None = None, *, event: str | None = None) -> bool:
        """End a pause."""
        return await self._pauses.resume(self._first_or(stream), event)

    async def paused(self, stream: str | None = None) -> dict[str, int]:
        """Return what is paused (``*`` is the whole stream) and since when, in milliseconds."""
        return await self._pauses.paused(self._first_or(stream))

    def dead_letters(self, stream: str | None = None) -> DeadLetters:
        """Return the dead letters of a stream."""
        return DeadLetters(self._client, self._first_or(stream))

    @property
    def jobs(self) -> Jobs:
        """Where jobs stand, if ``job_ttl_s`` is set."""
        return Jobs(self._client)

    # ------------------------------------------------------------ inside

    def _is_stopping(self) -> bool:
        return self.status in {Status.STOPPING, Status.STOPPED}

    def _first_or(self, stream: str | None) -> str:
        return self._streams[0] if stream is None else stream

    async def _end(self, mover: Mover) -> None:
        await mover.close()
        if self._execution is not None:
            self._execution.flush_counts()
        if self._burials is not None:
            await self._burials.finish()
        if self._recorder is not None:
            await self._recorder.drain()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _assemble(self) -> tuple[Consumer, Mover]:
        """Put the parts together. Nothing is sent."""
        if self._consumer is not None:
            raise LifecycleError("this Processor was started before. Create a new one.")
        self._execution = Execution(
            self._client,
            group=self._group,
            consumer_id=self._consumer_id,
            routes={
                event: Route(settings, self._middlewares, self._threads, self._is_stopping)
                for event, settings in self._handlers.items()
            },
            keys=self._keys,
            pauses=self._pauses,
            settler=Settler(self._client, group=self._group, consumer_id=self._consumer_id, settings=self._settings),
            emitter=self._emitter,
            jobs=self._recorder,
            settings=self._settings,
        )
        self._burials = Burials(self._execution.malformed)
        self._consumer = Consumer(
            streams=self._streams,
            redis=self._redis,
            handler=self._execution,
            concurrency=self._concurrency,
            group=self._group,
            consumer_id=self._consumer_id,
            on_exhausted=self._execution.exhausted,
            settings=replace(self._runtime, max_payload_bytes=self._largest_read()),
        )
        self._consumer.on("error", self._hear_error)
        for event, callback in self._callbacks:
            self._consumer.on(event, callback)
        self._mover = Mover(
            self._client,
            list(self._keys.values()),
            limit=self._settings.chunk_size,
            refresh_s=self._settings.refresh_s,
            on_tick=self._learn,
        )
        if self._stop_asked:  # before there was anybody to tell
            self._consumer.stop()
        return self._consumer, self._mover

    async def _learn(self, keys: Keys, found: Tick) -> None:
        """Take over what the mover saw: the server's clock, and pauses."""
        assert self._consumer is not None  # noqa: S101 - the mover was assembled with it
        assert self._execution is not None  # noqa: S101 - the same
        assert self._burials is not None  # noqa: S101 - the same
        self._execution.note_server_time(found.ahead_ms)
        self._execution.flush_counts()
        if self._is_stopping():
            self._execution.withdraw()
        self._burials.try_again()
        if self._recorder is not None:
            self._recorder.try_again()
        await self._pauses.learn(keys, found)
        withheld = frozenset(stream for stream in self._streams if self._pauses.is_stream_paused(stream))
        if withheld != self._withheld:  # told once: each time it cuts a waiting read short
            self._withheld = withheld
            self._consumer.withhold(withheld)
        await self._apply_retention(keys, found)

    async def _apply_retention(self, keys: Keys, found: Tick) -> None:
        """Let dead letters fall that are too old or too many. Burying does it, too, but maybe nothing dies any more."""
        most, age_s = self._settings.dead_letters_max, self._settings.dead_letters_max_age_s
        too_many = most is not None and found.dead > most
        age_ms = 0 if found.oldest_dead_ms is None else found.now_ms - found.oldest_dead_ms
        if too_many or (age_s is not None and age_ms > age_s * 1000):
            await DeadLetters(self._client, keys.stream).trim(max_count=most, max_age_s=age_s)

    def _hear_error(self, event: EngineError) -> None:
        error = event.error
        if isinstance(error, MalformedMessageError) and error.stream and error.message_id and self._burials:
            self._burials.begin(error.stream, error.message_id, error.reason or "it is malformed")

    def _largest_read(self) -> int:
        """What may be emitted may be read, and tried again: a retry is larger by what we write into it."""
        return max(self._runtime.max_payload_bytes, self._settings.max_payload_bytes) + _OUR_ADDITIONS

    def _threads(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._concurrency, thread_name_prefix="conquiet-handler")
        return self._executor
