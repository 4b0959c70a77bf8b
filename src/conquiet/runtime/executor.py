"""Run one message and return its settlement. The engine calls an executor and never a handler.

``HandlerExecutor`` runs the functions that a user passes to ``Consumer``; as the seed requires, they return None or
raise. The processor has a separate executor.
"""

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from conquiet.core import causation, tracing
from conquiet.core.batching import BatchSettings
from conquiet.core.functions import (
    call_in_thread,
    reject_generator_function,
    reject_unawaited,
    require_arguments,
    require_made_for,
)
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
from conquiet.core.worker_pool import Continuation, start_in_context
from conquiet.errors import ConfigurationError, DeliveriesExhaustedError, InfrastructureError
from conquiet.runtime.context import LeaseManager, MessageContext, SyncMessageContext
from conquiet.runtime.message import RuntimeMessage

if TYPE_CHECKING:
    from conquiet.runtime.batch import Batching

MessageHandler = Callable[[RuntimeMessage, Any], Any]
"""``async def handler(message, ctx)``, or a plain function with the same parameters, which runs in a thread."""

BatchHandler = Callable[[list[RuntimeMessage], list[Any]], Any]
"""``async def handler(messages, contexts)`` or a plain function: see ``batch_executor``."""

PendingSettlement = Settlement | Awaitable[Settlement]
"""A settlement, or an awaitable of one. A handler that never suspends costs no task switch."""

Execute = Callable[[RuntimeMessage, LeaseManager], PendingSettlement]

ENDS = (asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit)
"""Errors that are re-raised after a message is settled: they may be meant for the worker or the process."""


class Executor(Protocol):
    """Runs messages and returns settlements. Raises only a cancellation or an error that ends the process."""

    handles_malformed: bool
    """True if malformed entries are passed to ``malformed``."""

    batching: "Batching | None"
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


def is_async(function: Callable[..., Any], name: str = "handler") -> bool:
    """True for ``async def`` in any of its forms (a method, a partial, an object with an async ``__call__``)."""
    if not callable(function):
        raise ConfigurationError(f"{name} must be callable: async def {name}(message, ctx)")
    reject_generator_function(name, function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


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
        hooks = ((on_exhausted, "on_exhausted"), (on_malformed, "on_malformed"))
        if batch is None:
            run: Execute = _UserFunction(handler, "handler", threads, group, success=ACKNOWLEDGE).run
            traced = tracing.active is not None and tracing.active.traces_roots
            self.execute: Execute = _traced(run, group) if traced else run
        else:
            from conquiet.runtime.batch_executor import HandlerBatching

            self.batching = batching = HandlerBatching(handler, batch, threads=threads, group=group)
            self.execute = batching.execute_one
        self._on_exhausted, self._on_malformed = (
            None if hook is None else _UserFunction(hook, name, threads, group, success=KEEP_PENDING).run
            for hook, name in hooks
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
        self._is_async = is_async(function, name)
        require_arguments(name, function, "message", "ctx")
        require_made_for(function, "group", group)

    def run(self, message: RuntimeMessage, leases: LeaseManager) -> PendingSettlement:
        """Start the function immediately. Context variables that it sets are discarded when it ends."""
        causation.enter((message.stream, message.id))
        if not self._is_async:
            return self._finish(self._in_thread(message, leases))
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

    def _in_thread(self, message: RuntimeMessage, leases: LeaseManager) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        ctx = SyncMessageContext(message, leases, loop)
        run = contextvars.copy_context().run
        return loop.run_in_executor(self._threads(), run, call_in_thread, "the handler", self._function, message, ctx)


def _traced(run: Execute, group: str) -> Execute:
    """Wrap each run in a span. A handler that never suspends costs no coroutine here either."""

    def execute(message: RuntimeMessage, leases: LeaseManager) -> PendingSettlement:
        assert tracing.active is not None  # noqa: S101 - checked by the caller
        # SPEC(001): an entry is the caller's JSON object only. It cannot carry a trace context.
        span = tracing.active.process("redis", message.stream, message_id=message.id, group=group)
        span.__enter__()
        try:
            outcome = run(message, leases)
            if isinstance(outcome, Settlement):
                _record(span, message, outcome)
        except BaseException as error:
            span.__exit__(type(error), error, error.__traceback__)
            raise
        if not isinstance(outcome, Settlement):
            return finish(span, message, outcome)
        span.__exit__(None, None, None)
        return outcome

    async def finish(span: tracing.Span, message: RuntimeMessage, begun: Awaitable[Settlement]) -> Settlement:
        error: BaseException | None = None
        try:
            settlement = await begun
            _record(span, message, settlement)
        except BaseException as raised:
            error = raised
            raise
        finally:
            span.__exit__(None if error is None else type(error), error, None)
        return settlement

    return execute


def _record(span: tracing.Span, message: RuntimeMessage, settlement: Settlement) -> None:
    """Record the settlement in the span."""
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
