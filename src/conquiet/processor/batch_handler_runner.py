"""Call a batch handler with a list of contexts, awaited or in a thread, with a timeout."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any

from conquiet.core.batch_run import call_batch_handler
from conquiet.core.causation import enter
from conquiet.errors import ConfigurationError
from conquiet.processor.context import JobContext, JobEmitter, in_thread, job_context
from conquiet.processor.envelope import Envelope
from conquiet.processor.handler_runner import HandlerRunner
from conquiet.processor.middleware import Middleware
from conquiet.processor.settings import HandlerSettings
from conquiet.runtime.context import MessageContext


class BatchHandlerRunner(HandlerRunner):
    """Calls the batch handler of one event. A single message is a batch of one.

    Args:
        settings: The registered handler, with ``batch``.
        executor: Returns the thread pool for plain functions.
        is_stopping: Returns True once no handler may start.
        max_attempts_limit: See ``ProcessorSettings.max_attempts_limit``.

    Attributes:
        batch: Size and waiting time of its batches.
    """

    def __init__(
        self,
        settings: HandlerSettings,
        executor: Callable[[], Executor],
        is_stopping: Callable[[], bool] = lambda: False,
        max_attempts_limit: int | None = None,
    ) -> None:
        super().__init__(settings, (), executor, is_stopping, max_attempts_limit)
        assert settings.batch is not None  # noqa: S101 - guaranteed by runner_of
        self.batch = settings.batch

    def context(self, envelope: Envelope, delivery: MessageContext, emitter: JobEmitter) -> JobContext:
        """Return the context of one message, sync or async like the handler."""
        return self.contexts([(envelope, delivery)], emitter)[0]

    def contexts(self, admitted: Iterable[tuple[Envelope, MessageContext]], emitter: JobEmitter) -> list[JobContext]:
        """Return the contexts of messages, sync or async like the handler."""
        most, of = self.retry.max_attempts, self.attempts_of
        contexts = [
            job_context(envelope, delivery, emitter, most if envelope.max_attempts is None else of(envelope))
            for envelope, delivery in admitted
        ]
        if self.is_async:
            return contexts
        loop = asyncio.get_running_loop()
        return [in_thread(context, loop) for context in contexts]

    def invoke(
        self, envelope: Envelope, delivery: MessageContext, emitter: JobEmitter, stream: str
    ) -> Awaitable[object]:
        """Return an awaitable that runs a message as a batch of one. It raises the message's error."""
        context = self.context(envelope, delivery, emitter)
        enter(context)
        return self._invoke_one(context, stream)

    async def invoke_batch(self, contexts: list[JobContext], *, stream: str) -> Any:
        """Call the handler with its timeout. Return its result or raise its error."""
        timeout_s = self._timeout_s
        if timeout_s is None:
            return await self._call_with(contexts)
        for context in contexts:
            context.deadline = time.monotonic() + timeout_s
        first = contexts[0].delivery.id
        if self.is_async:
            return await self._cancelled_in_time(lambda: self._call_with(contexts), timeout_s, stream)
        return await self._watched(self._call_with(contexts), timeout_s, stream, first)

    async def _invoke_one(self, context: JobContext, stream: str) -> None:
        outcomes = await self.invoke_batch([context], stream=stream)
        if isinstance(outcomes, list) and len(outcomes) == 1 and isinstance(outcomes[0], Exception):
            raise outcomes[0]

    async def _call_with(self, contexts: list[JobContext]) -> Any:
        function = self._settings.function
        # With several messages the cause of an emitted message is unknown, unless a context emits it.
        enter(contexts[0] if len(contexts) == 1 else None)
        return await call_batch_handler(function, contexts, is_async=self.is_async, threads=self._executor)


Runners = dict[str, HandlerRunner]
"""Handler runners by event."""


def runner_of(
    settings: HandlerSettings,
    middlewares: Sequence[Middleware],
    executor: Callable[[], Executor],
    is_stopping: Callable[[], bool],
    max_attempts_limit: int | None,
) -> HandlerRunner:
    """Return the runner of a handler, for single messages or for batches.

    Raises:
        ConfigurationError: There are middlewares, which do not run around a batch handler.
    """
    if settings.batch is None:
        return HandlerRunner(settings, middlewares, executor, is_stopping, max_attempts_limit)
    if middlewares:
        raise ConfigurationError(
            f"the handler of {settings.event!r} is a batch handler, and this Processor has {len(middlewares)} "
            "middlewares: a middleware runs around one message, and would be skipped. Give the batch handler a "
            "Processor of its own, on a stream of its own"
        )
    return BatchHandlerRunner(settings, executor, is_stopping, max_attempts_limit)
