"""What ``TestApp`` has in place of RabbitMQ: queues in memory, settled by the functions of ``rabbit``.

``Pipeline`` prepares a message, ``interpret_result`` and ``interpret_error`` read what the handler did, and ``decide``
says what becomes of it, as in ``RabbitConsumer``. A requeued message comes again with ``redelivered`` set.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from conquiet.app.registry import QueueHandler
from conquiet.core.functions import is_coroutine_function
from conquiet.errors import ConfigurationError, FatalSyncerError, InfrastructureError
from conquiet.processor.dead_letter_record import DeadRecord

if TYPE_CHECKING:
    from conquiet.rabbit.config import RabbitConfig
    from conquiet.rabbit.settle import DeliveryFacts, Verdict


@dataclass(frozen=True, slots=True)
class MemoryRabbitDelivery:
    """One delivery, with what a syncer can ask of ``current_delivery()``."""

    queue: str
    body: bytes = field(repr=False)
    message_id: str | None = None
    headers: dict[str, Any] | None = None
    redelivered: bool = False
    attempt: int = 1

    @property
    def facts(self) -> "DeliveryFacts":
        """What the settle policy needs to know; a queue in memory counts deliveries."""
        from conquiet.rabbit.settle import DeliveryFacts

        return DeliveryFacts(self.redelivered, self.attempt - 1)


@dataclass(slots=True)
class _Queue:
    syncer: Callable[[Any], Any]
    config: "RabbitConfig"


class MemoryQueues:
    """The queues of an app.

    Args:
        now_ms: Returns the time of the test.
        executor: Runs plain functions.
    """

    def __init__(self, now_ms: Callable[[], int], executor: Callable[[], Executor]) -> None:
        self._now_ms = now_ms
        self._executor = executor
        self._queues: dict[str, _Queue] = {}
        self._waiting: deque[MemoryRabbitDelivery] = deque()
        self.dead_letters: list[DeadRecord] = []

    def add(self, name: str, handler: QueueHandler, syncer: Callable[[Any], Any]) -> None:
        """Add a queue and the syncer that handles its messages."""
        from conquiet.rabbit.config import RabbitConfig

        self._queues[name] = _Queue(syncer, RabbitConfig(**handler.options))

    def publish(self, queue: str, payload: Mapping[str, Any] | bytes, message_id: str | None) -> None:
        """Put a message into a queue.

        Raises:
            ConfigurationError: The app has no such queue.
        """
        if queue not in self._queues:
            known = ", ".join(sorted(self._queues)) or "none"
            raise ConfigurationError(f"the app has no queue {queue!r}; its queues: {known}")
        body = payload if isinstance(payload, bytes) else msgspec.json.encode(dict(payload))
        self._waiting.append(MemoryRabbitDelivery(queue, body, message_id))

    @property
    def has_messages(self) -> bool:
        """Whether a message waits."""
        return bool(self._waiting)

    async def run_next(self) -> int:
        """Handle the message that waits longest; return 1 if its handler ran.

        Raises:
            InfrastructureError: A server that the handler needs is unavailable. The message waits again.
            FatalSyncerError: The handler broke its contract.
        """
        from conquiet.rabbit.pipeline import Pipeline, Ready
        from conquiet.rabbit.settle import Disposition, decide

        delivery = self._waiting.popleft()
        queue = self._queues[delivery.queue]
        prepared = Pipeline(queue.config.schemas, queue.config.max_retries, None, queue.config.max_body_bytes).prepare(
            delivery.headers, delivery.body
        )
        has_run = isinstance(prepared, Ready)
        verdict = await self._verdict(queue, delivery, prepared.message) if isinstance(prepared, Ready) else prepared
        match decide(verdict, delivery.facts, queue.config.policy):
            case Disposition.ACK | Disposition.DROP:
                pass
            case Disposition.REQUEUE:
                self._waiting.append(replace(delivery, redelivered=True, attempt=delivery.attempt + 1))
            case Disposition.STOP | Disposition.DEAD_LETTER_AND_STOP:
                self._waiting.appendleft(delivery)
                reason = getattr(verdict, "reason", type(verdict).__name__)
                raise FatalSyncerError(f"{reason}; queue {delivery.queue}", queue=delivery.queue, reason=reason)
            case _:
                self._dead_letter(delivery, verdict)
        return int(has_run)

    async def _verdict(self, queue: _Queue, delivery: MemoryRabbitDelivery, message: Any) -> "Verdict":
        from conquiet.rabbit.delivery import CURRENT
        from conquiet.rabbit.syncer import Requeue, interpret_error, interpret_result

        context = copy_context()
        context.run(CURRENT.set, delivery)  # type: ignore[arg-type]
        try:
            if is_coroutine_function(queue.syncer):
                result = await asyncio.create_task(queue.syncer(message), context=context)
            else:
                loop = asyncio.get_running_loop()
                result = await loop.run_in_executor(self._executor(), context.run, queue.syncer, message)
        except (InfrastructureError, Requeue):
            self._waiting.append(delivery)  # not the message's fault: nothing is charged
            raise
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            return interpret_error(error)  # type: ignore[return-value]  # the two interruptions are raised above
        return interpret_result(result)

    def _dead_letter(self, delivery: MemoryRabbitDelivery, verdict: "Verdict") -> None:
        from conquiet.rabbit.dead_letter_headers import reason_of

        now_ms = self._now_ms()
        self.dead_letters.append(
            DeadRecord(
                reason=type(verdict).__name__.lower(),
                id=delivery.message_id or "",
                entry_id="",
                group=delivery.queue,
                event=delivery.queue,
                attempts=delivery.attempt,
                deliveries=delivery.attempt,
                error=reason_of(verdict),
                first_failed_ms=now_ms,
                failed_ms=now_ms,
            )
        )
