"""Call a handler with its limits and middlewares, awaited or in a thread. Assembled once, at the start."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

from conquiet.core.causation import enter
from conquiet.core.functions import cancellation_of, is_awaited, reject_generator_function
from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.core.threads import run_in_thread
from conquiet.errors import HandlerTimeoutError, InfrastructureError, MessageInProgressError
from conquiet.metrics.registry import PROCESSOR_OUTCOMES_TOTAL, PROCESSOR_TIMEOUTS_TOTAL
from conquiet.metrics.safety import count
from conquiet.processor.context import JobContext, JobEmitter, in_thread, job_context
from conquiet.processor.envelope import Envelope
from conquiet.processor.handler_limiter import HandlerLimiter
from conquiet.processor.middleware import Middleware, wrapped
from conquiet.processor.policy import Reject, Retry, allowed_attempts
from conquiet.processor.settings import HandlerSettings
from conquiet.runtime.context import MessageContext

logger = FactLogger(__name__)


class HandlerRunner:
    """Calls the handler of one event.

    Args:
        settings: The registered handler.
        middlewares: Middlewares around it, outermost first.
        emitter: For ``ctx.emit``.
        threads: Returns the thread pool for plain functions.
        is_stopping: Returns True once no handler may start.
        max_attempts_limit: See ``ProcessorSettings.max_attempts_limit``.

    Attributes:
        is_async: True if the handler is awaited, False if it runs in a thread.
        is_limited: True if the handler has a rate or a concurrency limit.
        limiter: Acquire it before ``invoke``. None if the handler has no concurrency limit.
        done: Successes by stream since the last ``flush_counts``. Counted separately, because successes must be cheap.
    """

    def __init__(
        self,
        settings: HandlerSettings,
        middlewares: Sequence[Middleware],
        *,
        emitter: JobEmitter,
        threads: Callable[[], Executor],
        is_stopping: Callable[[], bool] = lambda: False,
        max_attempts_limit: int | None = None,
    ) -> None:
        self.event = settings.event
        self.retry = settings.retry
        self.rate = settings.rate
        self._settings = settings
        self._timeout_s = settings.timeout_s
        self._is_stopping = is_stopping
        self.limiter = None if settings.concurrency is None else HandlerLimiter(settings.concurrency, is_stopping)
        self.is_limited = self.rate is not None or self.limiter is not None
        reject_generator_function("handler", settings.function)
        self.is_async = is_awaited(settings.function)
        self._mark_cancelled = cancellation_of(settings.function)
        self._emitter = emitter
        self._threads = threads
        self._call = wrapped(settings.function if self.is_async else self._in_thread, middlewares)
        self._max_attempts_limit = max_attempts_limit
        self._reported_bound = False
        self._counts: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.done: defaultdict[str, int] = defaultdict(int)

    def invoke(self, envelope: Envelope, delivery: MessageContext) -> Awaitable[object]:
        """Return an awaitable that runs the handler. It raises the handler's error or ``HandlerTimeoutError``."""
        most = self.retry.max_attempts if envelope.max_attempts is None else self.attempts_of(envelope)
        ctx = job_context(envelope, delivery, self._emitter, most)
        enter(ctx)
        # Most handlers have no timeout. Skipping one layer of await saves a tenth of the cost of a no-op.
        return self._call(ctx) if self._timeout_s is None else self._within_time(partial(self._call, ctx), [ctx])

    async def mark_cancelled(self, envelope: Envelope, delivery: MessageContext) -> bool:
        """Write where the handler writes its effect that the job is cancelled. False if the effect is there already.

        A handler without a database writes nothing: unless it returned, its job has not succeeded.
        """
        if self._mark_cancelled is None:
            return True
        ctx = job_context(envelope, delivery, self._emitter, self.attempts_of(envelope))
        if self.is_async:
            return bool(await self._mark_cancelled(ctx))
        loop = asyncio.get_running_loop()
        return bool(await loop.run_in_executor(self._threads(), self._mark_cancelled, in_thread(ctx, loop)))

    def attempts_of(self, envelope: Envelope) -> int:
        """Return the total number of attempts of a message. Log the first message that requests more than allowed."""
        own = envelope.max_attempts
        allowed = allowed_attempts(own, self.retry, self._max_attempts_limit)
        if own is not None and own > allowed and not self._reported_bound:
            self._reported_bound = True
            logger.warning(
                "message %(message_id)s of %(event_name)s asks for %(asked)s attempts and gets %(max_attempts)s, "
                "the most that its handler's policy allows. ProcessorSettings(max_attempts_limit=…) allows more; "
                "this is logged once",
                message_id=envelope.id,
                event_name=self.event,
                asked=own,
                max_attempts=allowed,
            )
        return allowed

    def count(self, stream: str, outcome: str) -> None:
        """Count the outcome of an attempt other than a success. ``flush_counts`` passes it to the metrics."""
        self._counts[stream, outcome] += 1

    def flush_counts(self) -> None:
        """Pass the counts to the metrics. Once a second costs a tenth of once per message."""
        counts, self._counts = self._counts, defaultdict(int)
        done, self.done = self.done, defaultdict(int)
        counts.update({(stream, "done"): number for stream, number in done.items()})
        for (stream, outcome), number in counts.items():
            count(PROCESSOR_OUTCOMES_TOTAL, stream, self.event, outcome, n=number)

    def cancel_waiters_if_stopping(self) -> None:
        """Reject runs that wait for the limiter once the processor stops."""
        if self.limiter is not None and self._is_stopping():
            self.limiter.cancel_waiters()

    async def _within_time(self, call: Callable[[], Awaitable[Any]], contexts: Sequence[JobContext]) -> Any:
        """Call the handler, with the deadline of its timeout in each context."""
        assert self._timeout_s is not None  # noqa: S101 - checked by the caller
        deadline = time.monotonic() + self._timeout_s
        for context in contexts:
            context.deadline = deadline
        limited = self._cancelled_in_time if self.is_async else self._watched
        return await limited(call, self._timeout_s, contexts[0])

    async def _cancelled_in_time(self, call: Callable[[], Awaitable[Any]], timeout_s: float, first: JobContext) -> Any:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await call()
        except TimeoutError as error:
            if not limit.expired():  # raised by the handler
                raise
            count(PROCESSOR_TIMEOUTS_TOTAL, first.stream, self.event, "cancelled")
            raise self._timed_out("was cancelled") from error

    async def _watched(self, call: Callable[[], Awaitable[Any]], timeout_s: float, first: JobContext) -> Any:
        """Run a plain function, log if it exceeds its timeout, and wait for its end.

        A thread cannot be killed. Starting a second run while the thread is still running would duplicate the effect,
        so the message stays leased until the thread ends. A late success is a success; a late failure is a timeout. A
        late ``Reject``, ``Retry``, ``InfrastructureError`` or ``MessageInProgressError`` is raised unchanged.
        """
        called = asyncio.ensure_future(call())
        try:
            done, _ = await asyncio.wait({called}, timeout=timeout_s)
        except asyncio.CancelledError:
            called.cancel()
            raise
        if done:
            return await called
        count(PROCESSOR_TIMEOUTS_TOTAL, first.stream, self.event, "running_on")
        logger.warning(
            "handler is over its time and runs on: a thread cannot be stopped",
            event_name=printable(self.event),
            timeout_s=timeout_s,
            message_id=first.delivery.id,
        )
        try:
            return await called
        except (Reject, Retry, InfrastructureError, MessageInProgressError):
            raise
        except Exception as error:
            raise self._timed_out("failed after it, in its thread") from error

    def _timed_out(self, what: str) -> HandlerTimeoutError:
        return HandlerTimeoutError(
            f"the handler of {printable(self.event)!r} took longer than {self._timeout_s:g} s and {what}",
            event=self.event,
            timeout_s=self._timeout_s,
        )

    def _in_thread(self, ctx: JobContext) -> Awaitable[object]:
        context = in_thread(ctx, asyncio.get_running_loop())
        return run_in_thread(self._threads(), self._settings.function, context)
