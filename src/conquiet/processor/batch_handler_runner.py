"""Call a batch handler with a list of contexts, awaited or in a thread, with a timeout."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import Any

from conquiet.core.batch_run import call_batch_handler
from conquiet.core.batching import BatchSettings
from conquiet.core.causation import enter
from conquiet.errors import ConfigurationError
from conquiet.processor.context import JobContext, in_thread, job_context
from conquiet.processor.envelope import Envelope
from conquiet.processor.handler_runner import HandlerRunner
from conquiet.processor.middleware import Middleware
from conquiet.processor.settings import HandlerSettings
from conquiet.runtime.context import MessageContext


class BatchHandlerRunner(HandlerRunner):
    """Calls the batch handler of one event. A single message is a batch of one. Arguments as in ``HandlerRunner``."""

    @property
    def batch(self) -> BatchSettings:
        """Size and waiting time of its batches."""
        assert self._settings.batch is not None  # noqa: S101 - see runner_class
        return self._settings.batch

    def contexts(self, admitted: Iterable[tuple[Envelope, MessageContext]]) -> list[JobContext]:
        """Return the contexts of messages, sync or async like the handler."""
        most, of, emitter = self.retry.max_attempts, self.attempts_of, self._emitter
        contexts = [
            job_context(envelope, delivery, emitter, most if envelope.max_attempts is None else of(envelope))
            for envelope, delivery in admitted
        ]
        if self.is_async:
            return contexts
        loop = asyncio.get_running_loop()
        return [in_thread(context, loop) for context in contexts]

    def invoke(self, envelope: Envelope, delivery: MessageContext) -> Awaitable[object]:
        """Return an awaitable that runs a message as a batch of one. It raises the message's error."""
        contexts = self.contexts([(envelope, delivery)])
        enter(contexts[0])
        return self._invoke_one(contexts)

    def invoke_batch(self, contexts: list[JobContext]) -> Awaitable[Any]:
        """Return an awaitable that calls the handler with its timeout. It returns its result or raises its error."""
        if self._timeout_s is None:
            return self._call_with(contexts)
        return self._within_time(partial(self._call_with, contexts), contexts)

    async def _invoke_one(self, contexts: list[JobContext]) -> None:
        outcomes = await self.invoke_batch(contexts)
        if isinstance(outcomes, list) and len(outcomes) == 1 and isinstance(outcomes[0], Exception):
            raise outcomes[0]

    def _call_with(self, contexts: list[JobContext]) -> Awaitable[Any]:
        # With several messages the cause of an emitted message is unknown, unless a context emits it.
        enter(contexts[0] if len(contexts) == 1 else None)
        return call_batch_handler(self._settings.function, contexts, is_async=self.is_async, threads=self._threads)


Runners = dict[str, HandlerRunner]
"""Handler runners by event."""


def runner_class(settings: HandlerSettings, middlewares: Sequence[Middleware]) -> type[HandlerRunner]:
    """Return the class of a handler's runner: for single messages or for batches.

    Raises:
        ConfigurationError: There are middlewares, which do not run around a batch handler.
    """
    if settings.batch is None:
        return HandlerRunner
    if middlewares:
        raise ConfigurationError(
            f"the handler of {settings.event!r} is a batch handler, and this Processor has {len(middlewares)} "
            "middlewares: a middleware runs around one message, and would be skipped. Give the batch handler a "
            "Processor of its own, on a stream of its own"
        )
    return BatchHandlerRunner
