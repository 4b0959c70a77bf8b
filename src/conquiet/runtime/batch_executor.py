"""Run the batch handler that a user passes to ``Consumer``: ``handler(messages, contexts)``."""

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from conquiet.core import causation, tracing
from conquiet.core.batch_run import BatchRun, Outcome
from conquiet.core.batching import BatchSettings
from conquiet.core.functions import (
    call_in_thread_for_result,
    reject_unawaited,
    require_arguments,
    require_made_for,
)
from conquiet.core.settlement import ACKNOWLEDGE, Settlement
from conquiet.core.worker_pool import Continuation, start_in_context
from conquiet.errors import LeaseLostError
from conquiet.runtime.context import LeaseManager, MessageContext, SyncMessageContext
from conquiet.runtime.executor import BatchHandler, is_async, settlement_of
from conquiet.runtime.message import RuntimeMessage

_KEY = ""


class HandlerBatching:
    """Puts all messages into one kind of batch and calls one function with each batch.

    Args:
        handler: ``async def handler(messages, contexts)``, or a plain function, which runs in a thread.
        settings: Size and waiting time of batches.
        threads: Returns the thread pool for plain functions.
        group: The consumer group. A handler made for another group is rejected.
    """

    def __init__(
        self, handler: BatchHandler, settings: BatchSettings, *, threads: Callable[[], ThreadPoolExecutor], group: str
    ) -> None:
        self._handler = handler
        self._threads = threads
        self._is_async = is_async(handler)
        require_arguments("handler", handler, "messages", "contexts")
        require_made_for(handler, "group", group)
        self._group = group
        self._found = (_KEY, settings)
        self.largest = settings.size

    def find(self, message: RuntimeMessage) -> tuple[str, BatchSettings]:  # noqa: ARG002 - all messages share one key
        """See ``Batching``."""
        return self._found

    async def execute_batch(
        self,
        key: str,  # noqa: ARG002 - there is only one key
        messages: Sequence[RuntimeMessage],
        leases: LeaseManager,
    ) -> list[Settlement]:
        """See ``Batching``. A message that still fails when it is alone stays pending."""
        loop = asyncio.get_running_loop()
        contexts: list[MessageContext] = [
            MessageContext(message, leases) if self._is_async else SyncMessageContext(message, leases, loop)
            for message in messages
        ]
        # SPEC(001): an entry is the caller's JSON object only. It carries no trace context to link the span to.
        span = tracing.BatchSpan(
            "redis",
            messages[0].stream,
            lambda: [tracing.BatchMember(message.id) for message in messages],
            group=self._group,
        )
        with span:
            outcomes = await BatchRun(contexts, self._call, lost=lost_lease).run()
            span.record(outcomes)
        return [ACKNOWLEDGE if outcome is None else settlement_of(outcome) for outcome in outcomes]

    async def execute_one(self, message: RuntimeMessage, leases: LeaseManager) -> Settlement:
        """Execute a message that must not be in a batch with others."""
        return (await self.execute_batch(_KEY, [message], leases))[0]

    async def _call(self, contexts: list[MessageContext]) -> Any:
        messages = [context.message for context in contexts]
        causation.enter((messages[0].stream, messages[0].id) if len(messages) == 1 else None)
        if not self._is_async:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads(),
                contextvars.copy_context().run,
                call_in_thread_for_result,
                "the handler",
                self._handler,
                messages,
                contexts,
            )
        result = start_in_context(self._handler(messages, contexts))
        if type(result) is Continuation:
            result = await result
        reject_unawaited(result)
        return result


def lost_lease(context: MessageContext) -> Outcome:
    """Return an error unless this consumer certainly still owns the message."""
    try:
        context.check_lease()
    except LeaseLostError as error:
        return error
    return None
