"""Run one message and return its settlement. The engine calls an executor and never a handler.

``HandlerExecutor`` runs the functions that a user passes to ``Consumer``; as the seed requires, they return None or
raise. If the function takes batches, ``HandlerBatching`` calls it. The processor has a separate executor.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from conquiet.core import causation, tracing
from conquiet.core.batch_run import BatchRun, call_batch_handler
from conquiet.core.batching import BatchSettings
from conquiet.core.functions import reject_unawaited, require_handler, require_made_for
from conquiet.core.redaction import printable
from conquiet.core.settlement import (
    ACKNOWLEDGE,
    KEEP_PENDING,
    DeadLetter,
    Defer,
    KeepPending,
    Release,
    RetryLater,
    Settlement,
    settlement_name,
)
from conquiet.core.threads import run_in_thread
from conquiet.core.worker_pool import Continuation, start_in_context
from conquiet.errors import ConfigurationError, DeliveriesExhaustedError, InfrastructureError
from conquiet.runtime.batch import Batching
from conquiet.runtime.context import LeaseManager, MessageContext, SyncMessageContext, lost_lease
from conquiet.runtime.message import RuntimeMessage

MessageHandler = Callable[[RuntimeMessage, Any], Any]
"""``async def handler(message, ctx)``, or a plain function with the same parameters, which runs in a thread."""

BatchHandler = Callable[[list[RuntimeMessage], list[Any]], Any]
"""``async def handler(messages, contexts)`` or a plain function: see ``HandlerBatching``."""

PendingSettlement = Settlement | Awaitable[Settlement]
"""A settlement, or an awaitable of one. A handler that never suspends costs no task switch."""

Execute = Callable[[RuntimeMessage, LeaseManager], PendingSettlement]

ENDS = (asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit)
"""Errors that are re-raised after a message is settled: they may be meant for the worker or the process."""


_KEY = ""
"""The batch key of all messages of a user's batch handler."""


class Executor(Protocol):
    """Runs messages and returns settlements. Raises only a cancellation or an error that ends the process."""

    handles_malformed: bool
    """True if malformed entries are passed to ``malformed``."""

    batching: Batching | None
    """Executes batches. None if every message is executed alone."""

    def execute(self, message: RuntimeMessage, leases: LeaseManager) -> PendingSettlement:
        """Run one message."""
        ...

    def exhausted(self, message: RuntimeMessage, leases: LeaseManager) -> PendingSettlement:
        """Return the settlement of a message that was delivered more often than ``max_deliveries``. It is not run."""
        ...

    def malformed(self, message: RuntimeMessage, leases: LeaseManager) -> PendingSettlement:
        """Return the settlement of an entry that is not a message."""
        ...

    async def store(
        self, message: RuntimeMessage, settlement: RetryLater | Defer | DeadLetter, leases: LeaseManager
    ) -> Settlement | None:
        """Store the message elsewhere and acknowledge its entry, in one step.

        Returns:
            None if it is stored; otherwise the settlement to carry out instead.

        Raises:
            QueueError: The server cannot be reached or returns an error. The entry may still be pending.
        """
        ...


def settlement_of(error: BaseException) -> Settlement:
    """Return the settlement of a message after its handler raised ``error``. Pure."""
    if isinstance(error, InfrastructureError):
        # Do not count the delivery: in a long outage every message would exceed the cap.
        return Release(error)
    return KeepPending(error)


class HandlerExecutor:
    """Runs a user's handler, and the user's functions for messages that are not run.

    Args:
        handler: Called with every message.
        on_exhausted: Called instead of it past ``max_deliveries``.
        on_malformed: Called instead of it with an entry that is no message.
        threads: Returns the thread pool for plain functions.
        group: The consumer group. A handler made for another group is rejected.
        batch: Size and waiting time of batches, if the handler takes batches.
    """

    def __init__(
        self,
        handler: Any,
        on_exhausted: MessageHandler | None,
        on_malformed: MessageHandler | None,
        *,
        threads: Callable[[], ThreadPoolExecutor],
        group: str,
        batch: BatchSettings | None = None,
    ) -> None:
        self.batching: Batching | None = None
        if batch is None:
            run: Execute = _UserFunction(handler, "handler", threads, group, success=ACKNOWLEDGE).run
            traced = tracing.active is not None and tracing.active.traces_roots
            self.execute: Execute = _traced(run, group) if traced else run
        else:
            self.batching = batching = HandlerBatching(handler, batch, threads=threads, group=group)
            self.execute = batching.execute_one
        self._on_exhausted, self._on_malformed = (
            None if hook is None else _UserFunction(hook, name, threads, group, success=KEEP_PENDING).run
            for hook, name in ((on_exhausted, "on_exhausted"), (on_malformed, "on_malformed"))
        )
        self.handles_malformed = on_malformed is not None

    def exhausted(self, message: RuntimeMessage, leases: LeaseManager) -> PendingSettlement:
        """See ``Executor``. The message stays pending unless ``on_exhausted`` acknowledges it."""
        if self._on_exhausted is None:
            return KeepPending(_exhausted(message))
        return self._on_exhausted(message, leases)

    def malformed(self, message: RuntimeMessage, leases: LeaseManager) -> PendingSettlement:
        """See ``Executor``. The entry stays pending unless ``on_malformed`` acknowledges it."""
        return KEEP_PENDING if self._on_malformed is None else self._on_malformed(message, leases)

    async def store(
        self, message: RuntimeMessage, settlement: RetryLater | Defer | DeadLetter, leases: LeaseManager
    ) -> Settlement | None:
        """See ``Executor``. Never called: a user's handler cannot return such a settlement."""
        raise NotImplementedError


class _UserFunction:
    """Awaits a user's async function, or calls a plain one in a thread. Returns ``success`` or a failure."""

    def __init__(
        self,
        function: MessageHandler,
        name: str,
        threads: Callable[[], ThreadPoolExecutor],
        group: str,
        *,
        success: Settlement,
    ) -> None:
        self._success = success
        self._function = function
        self._threads = threads
        self._is_async = require_handler(name, function, "message", "ctx")
        require_made_for(function, "group", group)

    def run(self, message: RuntimeMessage, leases: LeaseManager) -> PendingSettlement:
        """Start the function immediately. Context variables that it sets are discarded when it ends."""
        causation.enter((message.stream, message.id))
        if not self._is_async:
            ctx = SyncMessageContext(message, leases, asyncio.get_running_loop())
            return self._finish(run_in_thread(self._threads(), self._function, message, ctx))
        try:
            begun = start_in_context(self._function(message, MessageContext(message, leases)), self._settlement)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything and must not end its worker
            return self._settlement(None, error)
        if begun is None:
            return self._success
        return begun if type(begun) is Continuation else self._settlement(begun, None)

    def _settlement(self, result: object, error: BaseException | None) -> Settlement:
        """Return the settlement of the message. Re-raise errors that may be meant for the worker or the process."""
        if error is None:
            if result is None:
                return self._success
            try:
                reject_unawaited(result)
            except ConfigurationError as mistake:
                return KeepPending(mistake)
            return self._success
        if isinstance(error, ENDS):
            raise error
        return settlement_of(error)

    async def _finish(self, begun: Awaitable[Any]) -> Settlement:
        try:
            await begun
        except BaseException as error:  # noqa: BLE001 - as in run()
            return self._settlement(None, error)
        return self._success


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
        self._is_async = require_handler("handler", handler, "messages", "contexts")
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
        with tracing.batch_span(
            "redis",
            messages[0].stream,
            lambda: [tracing.BatchMember(message.id) for message in messages],
            group=self._group,
        ) as span:
            outcomes = await BatchRun(contexts, self._call, lost=lost_lease).run()
            tracing.record_batch(span, outcomes)
        return [ACKNOWLEDGE if outcome is None else settlement_of(outcome) for outcome in outcomes]

    async def execute_one(self, message: RuntimeMessage, leases: LeaseManager) -> Settlement:
        """Execute a message that must not be in a batch with others."""
        return (await self.execute_batch(_KEY, [message], leases))[0]

    async def _call(self, contexts: list[MessageContext]) -> Any:
        messages = [context.message for context in contexts]
        causation.enter((messages[0].stream, messages[0].id) if len(messages) == 1 else None)
        return await call_batch_handler(
            self._handler, messages, contexts, is_async=self._is_async, threads=self._threads
        )


def _traced(run: Execute, group: str) -> Execute:
    """Wrap each run in a span."""

    async def trace(message: RuntimeMessage, leases: LeaseManager) -> Settlement:
        assert tracing.active is not None  # noqa: S101 - checked by the caller
        # SPEC(001): an entry is the caller's JSON object only. It cannot carry a trace context.
        with tracing.active.process("redis", message.stream, message_id=message.id, group=group) as span:
            begun = run(message, leases)
            settlement = begun if isinstance(begun, Settlement) else await begun
            record_settlement(span, message, settlement)
            return settlement

    return lambda message, leases: start_in_context(trace(message, leases))


def record_settlement(span: tracing.Span, message: RuntimeMessage, settlement: Settlement) -> None:
    """Record the settlement in the span of a run."""
    if not span.is_dropped:
        span.set("conquiet.settlement", settlement_name(settlement))
        if message.lease_lost:
            span.set("conquiet.lease.lost", value=True)
    if settlement.failure is not None:
        span.fail(settlement.failure)


def _exhausted(message: RuntimeMessage) -> DeliveriesExhaustedError:
    return DeliveriesExhaustedError(
        f"message {message.id} of stream {printable(message.stream)!r} was delivered {message.delivery_count} times "
        "and is not run again. It stays pending: acknowledge or move it, or pass on_exhausted",
        stream=message.stream,
        message_id=message.id,
        delivery_count=message.delivery_count,
    )
