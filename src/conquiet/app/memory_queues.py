"""The RabbitMQ of ``TestApp``: queues in memory, settled by the functions of ``rabbit``.

As in ``RabbitConsumer``, ``Pipeline`` prepares a message, ``interpret_result`` and ``interpret_error`` read the outcome
of the handler, and ``decide`` returns the disposition. A requeued message is delivered again with ``redelivered`` set.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from conquiet.app.registry import Handler
from conquiet.core.batch_run import BatchRun
from conquiet.core.batching import BatchSettings
from conquiet.core.functions import is_coroutine_function
from conquiet.errors import FatalSyncerError, InfrastructureError
from conquiet.processor.dead_letter_record import DeadRecord
from conquiet.rabbit.batch_results import CURRENT_BATCH, outcomes_of, report_of
from conquiet.rabbit.delivery import CURRENT
from conquiet.rabbit.pipeline import Pipeline, Ready
from conquiet.rabbit.settings import RabbitSettings
from conquiet.rabbit.settle import DeliveryFacts, Disposition, Verdict, decide
from conquiet.rabbit.syncer import Postpone, Postponed, Unavailable, interpret_error, interpret_result


@dataclass(frozen=True, slots=True)
class MemoryRabbitDelivery:
    """One delivery, with the attributes that a syncer reads from ``current_delivery()``."""

    queue: str
    body: bytes = field(repr=False)
    message_id: str | None = None
    headers: dict[str, Any] | None = None
    redelivered: bool = False
    attempt: int = 1


@dataclass(slots=True)
class _Queue:
    syncer: Callable[[Any], Any]
    settings: RabbitSettings
    pipeline: Pipeline


class MemoryQueues:
    """The queues of an app.

    Args:
        handlers: The declared queues.
        syncers: Handle the messages of each queue.
        executor: Runs plain functions.
        dead_letters: Gets the dead-lettered messages.
        now_ms: Returns the time of the test.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        syncers: Mapping[str, Callable[[Any], Any]],
        executor: Executor,
        dead_letters: list[DeadRecord],
        now_ms: Callable[[], int],
    ) -> None:
        self._queues: dict[str, _Queue] = {}
        for name, handler in handlers.items():
            settings = RabbitSettings(**handler.options)
            self._queues[name] = _Queue(syncers[name], settings, Pipeline.of(settings))
        self._executor = executor
        self._dead_letters = dead_letters
        self._now_ms = now_ms
        self._waiting: deque[MemoryRabbitDelivery] = deque()

    def publish(self, queue: str, payload: Mapping[str, Any] | bytes, message_id: str | None) -> None:
        """Put a message into a queue."""
        body = payload if isinstance(payload, bytes) else msgspec.json.encode(dict(payload))
        self._waiting.append(MemoryRabbitDelivery(queue, body, message_id))

    @property
    def has_messages(self) -> bool:
        """True if a message waits."""
        return bool(self._waiting)

    async def run_next(self) -> int:
        """Handle the oldest message, or a batch that begins with it; return the number of handler runs.

        Raises:
            InfrastructureError: A server that the handler needs is unavailable. Its messages are queued again.
            FatalSyncerError: The handler broke its contract.
        """
        first = self._waiting.popleft()
        queue = self._queues[first.queue]
        batches = queue.settings.batches
        ready: list[tuple[MemoryRabbitDelivery, Any]] = []
        for delivery in (first, *self._taken_with(first, batches)):
            prepared = queue.pipeline.prepare(delivery.headers, delivery.body)
            if isinstance(prepared, Ready):
                ready.append((delivery, prepared.message))
            else:
                self._settle(delivery, prepared, queue)
        if batches is None:
            for delivery, message in ready:
                self._settle(delivery, await self._verdict(queue, delivery, message), queue)
        elif ready:
            await self._run_batch(queue, ready)
        return len(ready)

    def _taken_with(self, first: MemoryRabbitDelivery, batches: BatchSettings | None) -> list[MemoryRabbitDelivery]:
        """Remove and return messages for one batch: of the same queue, with the same delivery count."""
        if batches is None:
            return []
        of_batch = [one for one in self._waiting if (one.queue, one.attempt) == (first.queue, first.attempt)]
        taken = of_batch[: batches.size_at(first.attempt) - 1]
        self._waiting = deque(one for one in self._waiting if not any(one is other for other in taken))
        return taken

    async def _run_batch(self, queue: _Queue, members: list[tuple[MemoryRabbitDelivery, Any]]) -> None:
        async def call(some: list[tuple[MemoryRabbitDelivery, Any]]) -> Any:
            context = copy_context()
            context.run(CURRENT_BATCH.set, [delivery for delivery, _ in some])  # type: ignore[misc]
            return outcomes_of(await self._call(queue, [message for _, message in some], context))

        interrupted: Exception | None = None  # raised at the end, when each message is settled or queued again
        for (delivery, _), outcome in zip(members, await BatchRun(members, call).run(), strict=True):
            report = report_of(outcome)
            if isinstance(report, Unavailable | Postponed):
                self._waiting.append(delivery)  # not the message's fault: no attempt is counted
                interrupted = outcome or Postpone()
                continue
            try:
                self._settle(delivery, report, queue)
            except FatalSyncerError as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted

    def _settle(self, delivery: MemoryRabbitDelivery, verdict: Verdict, queue: _Queue) -> None:
        facts = DeliveryFacts(delivery.redelivered, delivery.attempt - 1)  # a queue in memory counts deliveries
        match decide(verdict, facts, queue.settings.policy):
            case Disposition.ACK | Disposition.DROP:
                pass
            case Disposition.REQUEUE:
                self._waiting.append(replace(delivery, redelivered=True, attempt=delivery.attempt + 1))
            case Disposition.STOP | Disposition.DEAD_LETTER_AND_STOP:
                self._waiting.appendleft(delivery)
                reason = verdict.reason
                raise FatalSyncerError(f"{reason}; queue {delivery.queue}", queue=delivery.queue, reason=reason)
            case _:
                self._dead_letter(delivery, verdict)

    async def _verdict(self, queue: _Queue, delivery: MemoryRabbitDelivery, message: Any) -> Verdict:
        context = copy_context()
        context.run(CURRENT.set, delivery)  # type: ignore[arg-type]
        try:
            result = await self._call(queue, message, context)
        except (InfrastructureError, Postpone):
            self._waiting.append(delivery)  # not the message's fault: no attempt is counted
            raise
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            return interpret_error(error)  # type: ignore[return-value]  # the two interruptions are raised above
        return interpret_result(result)

    async def _call(self, queue: _Queue, argument: Any, context: Context) -> object:
        if is_coroutine_function(queue.syncer):
            return await asyncio.create_task(queue.syncer(argument), context=context)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, context.run, queue.syncer, argument)

    def _dead_letter(self, delivery: MemoryRabbitDelivery, verdict: Verdict) -> None:
        now_ms = self._now_ms()
        self._dead_letters.append(
            DeadRecord(
                reason=type(verdict).__name__.lower(),
                id=delivery.message_id or "",
                entry_id="",
                group=delivery.queue,
                event=delivery.queue,
                attempts=delivery.attempt,
                deliveries=delivery.attempt,
                error=verdict.reason,
                first_failed_ms=now_ms,
                failed_ms=now_ms,
            )
        )
