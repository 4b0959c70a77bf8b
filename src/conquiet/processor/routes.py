"""How a handler is called: its limits, its middlewares, awaited or in a thread. Put together once, at the start."""

import asyncio
import contextvars
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor

from conquiet.errors import HandlerTimeoutError
from conquiet.kernel.functions import call_in_thread
from conquiet.kernel.redaction import printable
from conquiet.metrics.registry import PROCESSOR_OUTCOMES_TOTAL, PROCESSOR_TIMEOUTS_TOTAL, never_raises
from conquiet.processor.context import Delivery, JobContext, SyncJobContext
from conquiet.processor.emitter import Emitter
from conquiet.processor.envelope import Envelope
from conquiet.processor.middleware import Middleware, wrapped
from conquiet.processor.policy import Reject, Retry
from conquiet.processor.settings import HandlerSettings
from conquiet.processor.slots import Slots
from conquiet.runtime.runner import is_async

logger = logging.getLogger(__name__)


class Route:
    """One event's handler, ready to be called.

    Args:
        settings: The handler as it was registered.
        middlewares: What runs around it, outermost first.
        executor: Where plain functions run.
        is_stopping: True once no run is to be begun any more.

    Attributes:
        slots: To be had before ``invoke`` if the handler has a concurrency of its own, else None.
    """

    def __init__(
        self,
        settings: HandlerSettings,
        middlewares: Sequence[Middleware],
        executor: Callable[[], Executor],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.event = settings.event
        self.retry = settings.retry
        self.rate = settings.rate
        self._settings = settings
        self._timeout_s = settings.timeout_s
        self.slots = None if settings.concurrency is None else Slots(settings.concurrency, is_stopping)
        self._is_async = is_async(settings.function)
        self._executor = executor
        self._call = wrapped(settings.function if self._is_async else self._in_thread, middlewares)
        self._counts: defaultdict[tuple[str, str], int] = defaultdict(int)

    def invoke(self, envelope: Envelope, delivery: Delivery, emitter: Emitter, stream: str) -> Awaitable[object]:
        """Return what to await: the handler within its time. Raises what it raises, or ``HandlerTimeoutError``."""
        max_attempts = self.retry.max_attempts if envelope.max_attempts is None else envelope.max_attempts
        ctx = JobContext(envelope, delivery, emitter, max_attempts)
        # Most handlers have no limit: one layer of awaiting less is a tenth of what a no-op costs.
        return self._call(ctx) if self._timeout_s is None else self._within_time(ctx, self._timeout_s, stream)

    def count(self, stream: str, outcome: str) -> None:
        """Count what became of one attempt; ``flush_counts`` hands it on."""
        self._counts[stream, outcome] += 1

    def flush_counts(self) -> None:
        """Give the counts to the metrics. Once a second is enough, and a tenth of the cost of once per message."""
        counts, self._counts = self._counts, defaultdict(int)
        for (stream, outcome), count in counts.items():
            _count_outcomes(stream, self.event, outcome, count)

    async def _within_time(self, ctx: JobContext, timeout_s: float, stream: str) -> object:
        ctx.deadline = time.monotonic() + timeout_s
        if self._is_async:
            return await self._cancelled_in_time(ctx, timeout_s, stream)
        return await self._watched(ctx, timeout_s, stream)

    async def _cancelled_in_time(self, ctx: JobContext, timeout_s: float, stream: str) -> object:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await self._call(ctx)
        except TimeoutError as error:
            if not limit.expired():  # the handler's own
                raise
            _count_timeout(stream, self.event, "cancelled")
            raise self._timed_out("was cancelled") from error

    async def _watched(self, ctx: JobContext, timeout_s: float, stream: str) -> object:
        """Run a plain function and say when it is late. It is waited for all the same.

        A thread cannot be killed. Trying the message again beside it would be the very thing this library
        exists to prevent, so the message stays with its thread, leased, until that ends. If it
        succeeds late, it has succeeded; if it fails late, it has timed out. What it decides itself holds, late or not.
        """
        call = asyncio.ensure_future(self._call(ctx))
        try:
            done, _ = await asyncio.wait({call}, timeout=timeout_s)
        except asyncio.CancelledError:
            call.cancel()
            raise
        if done:
            return await call
        _count_timeout(stream, self.event, "running_on")
        logger.warning(
            "handler is over its time and runs on: a thread cannot be stopped",
            extra={"event": printable(self.event), "timeout_s": timeout_s, "message_id": ctx.delivery.id},
        )
        try:
            return await call
        except (Reject, Retry):
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
        loop = asyncio.get_running_loop()
        run = contextvars.copy_context().run
        context = SyncJobContext(ctx, loop)
        return loop.run_in_executor(
            self._executor(), run, call_in_thread, "the handler", self._settings.function, context
        )


@never_raises
def _count_outcomes(stream: str, event: str, outcome: str, count: int) -> None:
    PROCESSOR_OUTCOMES_TOTAL.labels(stream, event, outcome).inc(count)


@never_raises
def _count_timeout(stream: str, event: str, kind: str) -> None:
    PROCESSOR_TIMEOUTS_TOTAL.labels(stream, event, kind).inc()
