"""The processor: one handler per event, on top of the runtime engine. ``execution`` runs the messages."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from conquiet.core.background import require_stop_event
from conquiet.core.batching import batch_settings
from conquiet.core.functions import reject_generator_function, require_made_for
from conquiet.core.lifecycle import Status
from conquiet.core.redaction import printable
from conquiet.core.settlement import Settlement
from conquiet.core.task_cancellation import cancel_from_any_thread, is_ending
from conquiet.core.validation import require_positive
from conquiet.errors import ConfigurationError, LifecycleError
from conquiet.processor.assembly import AssembledProcessor, assemble
from conquiet.processor.batch_handler_runner import Runners, runner_class
from conquiet.processor.dead_letters import apply_retention
from conquiet.processor.delayed import DelayedPromoter, Poll, PollListener
from conquiet.processor.emitter import Emitter
from conquiet.processor.keys import Keys, keys_of
from conquiet.processor.middleware import Middleware
from conquiet.processor.operator_calls import OperatorCalls
from conquiet.processor.ordering import OrderOwnerCheck
from conquiet.processor.parts import ProcessorParts
from conquiet.processor.pauses import Pauses
from conquiet.processor.policy import RateLimit, RetryPolicy, require_event
from conquiet.processor.processor_base import ProcessorBase
from conquiet.processor.settings import HandlerSettings, ProcessorSettings, engine_settings
from conquiet.redis_transport.client import AnyRedis
from conquiet.runtime.engine import Engine
from conquiet.runtime.engine_events import Callback, EventDispatcher
from conquiet.runtime.health import NOT_STARTED, NOTHING_DONE, EngineHealth, StopReport
from conquiet.runtime.message import RuntimeMessage
from conquiet.runtime.settings import RuntimeSettings, require_streams
from conquiet.runtime.shutdown import wait_unless_forced

F = TypeVar("F", bound=Callable[..., Any])

_ENDS = {Status.STOPPING, Status.STOPPED}


class Processor(OperatorCalls, ProcessorBase):
    """Runs a handler per event, with retries, delays, dead letters and pauses.

    Args:
        redis: A ``redis.asyncio.Redis`` or ``redis.Redis``. Separate connections to the same server are opened.
        streams: Keys of the streams. Messages are emitted to the first stream unless another is named.
        concurrency: Maximum number of concurrent handlers on this host.
        group: The consumer group.
        consumer_id: Name of this consumer in it. Default: derived from host name and process id.
        settings: Settings of the processor.
        runtime: Settings of the engine, including stream priorities.
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
        super().__init__(redis, concurrency=concurrency, group=group, consumer_id=consumer_id, settings=settings)
        self._runtime = RuntimeSettings() if runtime is None else runtime
        self._handlers: dict[str, HandlerSettings] = {}
        self._middlewares: list[Middleware] = []
        self._events = EventDispatcher()
        self._executor: ThreadPoolExecutor | None = None
        self._assembled: AssembledProcessor | None = None
        self._emitter = Emitter(self._client, self._streams[0], self._settings, jobs=self._recorder)
        self._pauses = Pauses(self._client)
        self._engine: Engine | None = None
        self._runners: Runners = {}
        self._paused_streams: frozenset[str] = frozenset()
        self._starting: asyncio.Task[None] | None = None
        self._poll_listeners: list[PollListener] = [OrderOwnerCheck(self._group)]

    def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum number of concurrent handlers before the start. Used by ``conquiet worker``."""
        self._lifecycle.require_new("concurrency")
        self._concurrency = require_positive("concurrency", concurrency)

    def handler(
        self,
        event: str,
        *,
        retry: RetryPolicy | None = None,
        timeout_s: float | None = None,
        concurrency: int | None = None,
        rate: RateLimit | None = None,
        batch: int | None = None,
        within_s: float | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated function for an event: ``async def send(ctx)``, or a plain function, run in a thread.

        Args:
            event: The event. Each event has one handler.
            retry: Retry policy. Default: the policy of the processor.
            timeout_s: Longest run. A plain function that exceeds it is reported and continues, because a thread cannot
                be stopped.
            concurrency: Maximum number of concurrent runs on this host.
            rate: Maximum number of starts per period, over all hosts. Cannot be combined with ``batch``.
            batch: Maximum number of messages per call. The function takes a list of contexts; see docs/batches.md.
            within_s: Deadline for the effect of the first message of a batch, 0.02 s by default. The batch is gathered
                for this time minus the recent batch duration, but for at least half of it.
        """
        self._lifecycle.require_new("handlers")
        require_event(event)  # checked here, because a bare @processor.handler would never register
        gathered = batch_settings(batch, within_s)
        options: dict[str, Any] = {"timeout_s": timeout_s, "concurrency": concurrency, "rate": rate}

        def register(function: F) -> F:
            if event in self._handlers:
                raise ConfigurationError(f"event {event!r} has a handler already")
            require_made_for(function, "group", self._group)
            policy = self._settings.retry if retry is None else retry
            self._handlers[event] = HandlerSettings(
                event=event, function=function, retry=policy, **options, batch=gathered
            )
            return function

        return register

    def add_middleware(self, middleware: Middleware) -> None:
        """Run ``async def middleware(ctx, call_next)`` around every handler. The first one added is the outermost."""
        self._lifecycle.require_new("middlewares")
        if not callable(middleware):
            raise ConfigurationError("a middleware must be callable: async def middleware(ctx, call_next)")
        reject_generator_function("a middleware", middleware)
        self._middlewares.append(middleware)

    def on(self, event: str, callback: Callback) -> None:
        """Subscribe to events of the engine; see ``runtime.Consumer.on``. ``failed`` is emitted per failed attempt."""
        self._events.on(event, callback)

    def off(self, event: str, callback: Callback) -> None:
        """End a subscription of ``on``. Raises ``ConfigurationError`` if there is none."""
        self._events.off(event, callback)

    async def start(self, stop_event: asyncio.Event | None = None) -> StopReport:
        """Process messages and move due ones until ``stop()``; see ``runtime.Consumer.start``.

        Raises:
            ConfigurationError: No handler is registered, or ``stop_event`` cannot be used. Nothing was sent.
            MalformedMessageError: The first ``foreign_limit`` entries of a stream are not messages. They stay pending.
        """
        require_stop_event(stop_event)
        return await self._run(*self._begin(), stop_event)

    async def run(self) -> StopReport:
        """Process until ``stop()``; the same as ``start()``."""
        return await self.start()

    def stop(self) -> None:
        """Request the stop; a second call forces it. See ``runtime.Consumer.stop``. Safe in a signal handler."""
        self._lifecycle.request_stop()
        if self._engine is not None:
            self._engine.stop()
            self._cancel_start()

    def end(self) -> None:
        """Stop in order, without counting as a call of ``stop()``: a later ``stop()`` does not force."""
        if self._engine is not None:
            self._lifecycle.stop()
            self._engine.end()
            self._cancel_start()

    async def wait_for_active_tasks(self) -> None:
        """Return when no handler is running and all finished messages are acknowledged."""
        if self._engine is not None:
            await self._engine.wait_for_active_tasks()

    def is_own_handler(self) -> bool:
        """Return True if a handler of this processor is the caller: it cannot wait for the end of the processor."""
        return self._engine is not None and self._engine.is_own_handler()

    def _enter(self) -> tuple[Coroutine[Any, Any, StopReport], asyncio.Event]:
        engine, promoter = self._begin()
        return self._run(engine, promoter), engine.consuming

    @property
    def status(self) -> Status:
        """The lifecycle status."""
        status = self._lifecycle.status
        engine = None if self._engine is None else self._engine.status  # NEW while the processor starts
        return Status.STOPPING if status is Status.RUNNING and engine in _ENDS else status

    @property
    def abandoned(self) -> int:
        """Handlers that did not end within the grace period."""
        return 0 if self._engine is None else self._engine.abandoned

    def health(self) -> EngineHealth:
        """Report the state of the engine, without a call to the server. Never raises; safe from any thread."""
        engine = self._engine
        return replace(NOT_STARTED if engine is None else engine.health(), status=self.status)

    def _is_stopping(self) -> bool:
        return self.status in _ENDS

    async def _run(
        self, engine: Engine, promoter: DelayedPromoter, stop_event: asyncio.Event | None = None
    ) -> StopReport:
        return await self._run_shielded(self._live(engine, promoter, stop_event), force=engine.forced.set)

    async def _live(self, engine: Engine, promoter: DelayedPromoter, stop_event: asyncio.Event | None) -> StopReport:
        try:
            self._starting = asyncio.create_task(promoter.start(), name="conquiet-promoter-start")
            if self._lifecycle.is_stopping:  # stopped before there was a task to cancel
                self._starting.cancel()
            await self._starting
            return await engine.start(stop_event)
        except (asyncio.CancelledError, LifecycleError):
            # Stopped before the engine has started. A cancellation of this task is raised.
            if not self._lifecycle.is_stopping or is_ending(asyncio.current_task()):
                raise
            return NOTHING_DONE
        finally:
            await self._finish(engine, promoter)

    def _cancel_start(self) -> None:
        cancel_from_any_thread(self._starting)

    async def _finish(self, engine: Engine, promoter: DelayedPromoter) -> None:
        await promoter.close()
        for runner in self._runners.values():
            runner.flush_counts()
        await wait_unless_forced(self._drain(), engine.forced)
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _drain(self) -> None:
        if self._assembled is not None:
            await self._assembled.foreign.finish()
        if self._recorder is not None:
            await self._recorder.drain()

    def _begin(self) -> tuple[Engine, DelayedPromoter]:
        if not self._handlers:
            raise ConfigurationError(
                f"this Processor of {', '.join(map(printable, self._streams))} has no handler, so that every message "
                "would be unknown to it. Register one with @processor.handler(event) before the start"
            )
        self._lifecycle.start()
        try:
            return self._assemble()
        except BaseException:
            self._lifecycle.finish()  # refused before anything runs: close() must not wait for an end
            raise

    def _assemble(self) -> tuple[Engine, DelayedPromoter]:
        """Build the parts. Nothing is sent."""
        for handler in self._handlers.values():
            handler.compare_pool(self._concurrency)
        self._runners = {
            event: runner_class(handler, self._middlewares)(
                handler,
                self._middlewares,
                emitter=self._emitter,
                threads=self._threads,
                is_stopping=self._is_stopping,
                max_attempts_limit=self._settings.max_attempts_limit,
            )
            for event, handler in self._handlers.items()
        }
        recorder = self._recorder
        parts = ProcessorParts(
            client=self._client,
            group=self._group,
            consumer_id=self._consumer_id,
            keys=self._keys,
            settings=self._settings,
            jobs=recorder,
            pauses=self._pauses,
            log_tracebacks=self._runtime.log_tracebacks,
        )
        self._assembled = assembled = assemble(parts, self._runners, self._settle_held)
        self._engine = engine = Engine(
            streams=self._streams,
            redis=self._redis,
            executor=assembled.execution,
            concurrency=self._concurrency,
            group=self._group,
            consumer_id=self._consumer_id,
            settings=engine_settings(self._settings, self._runtime),
            events=self._events,
        )
        promoter = DelayedPromoter(
            self._client,
            list(self._keys.values()),
            limit=self._settings.chunk_size,
            refresh_s=self._settings.refresh_s,
            listeners=[
                lambda _, found: parts.clock.correct(found.ahead_ms),
                *([] if recorder is None else [lambda keys, _: recorder.purge(keys)]),
                *self._poll_listeners,
                self._pauses.on_poll,
                assembled.canceller.on_poll,
                self._apply_stream_pauses,
                partial(apply_retention, self._client, self._settings),
            ],
            maintain=self._maintain,
        )
        if self._lifecycle.is_stopping:  # before there was an engine
            engine.end()
        return engine, promoter

    def _maintain(self) -> None:
        """Flush metrics, retry job states and reject waiting runs on a stop. Called once per ``refresh_s``."""
        if self._recorder is not None:
            self._recorder.retry_failed()
        for runner in self._runners.values():
            runner.flush_counts()
            runner.cancel_waiters_if_stopping()

    def _apply_stream_pauses(self, _keys: Keys, _found: Poll) -> None:
        """Stop reading paused streams, and resume the others."""
        paused = frozenset(stream for stream in self._streams if self._pauses.is_stream_paused(stream))
        if paused != self._paused_streams and self._engine is not None:  # each call ends a blocking read
            self._paused_streams = paused
            self._engine.pause_streams(paused)

    async def _settle_held(self, message: RuntimeMessage, settlement: Settlement) -> None:
        """Settle an entry that ``ForeignGuard`` has held."""
        if self._engine is not None:
            await self._engine.settle(message, settlement)

    def _threads(self) -> ThreadPoolExecutor:
        self._executor = self._executor or ThreadPoolExecutor(self._concurrency, "conquiet-handler")
        return self._executor
