"""What a handler of the processor gets."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from conquiet.errors import LifecycleError
from conquiet.kernel.redaction import printable
from conquiet.kernel.threads import wait_on_loop
from conquiet.processor.emitter import Emitter
from conquiet.processor.envelope import Envelope
from conquiet.processor.plans import Emitted

logger = logging.getLogger("conquiet.processor.job")

T = TypeVar("T")

_ENDED = "the event loop has ended before this handler: whoever claims its message begins anew"


class Delivery(Protocol):
    """The part of the engine's message context that a job leans on. SPEC(002): ``ctx.ack()`` is all it needs."""

    @property
    def id(self) -> str:
        """Entry id."""
        ...

    @property
    def stream(self) -> str:
        """Stream of the entry."""
        ...

    @property
    def delivery_count(self) -> int:
        """How often the server has delivered the entry."""
        ...

    async def ack(self) -> None:
        """Acknowledge now."""
        ...

    def leaving(self) -> AbstractContextManager[None]:
        """Around a call that acknowledges the entry by other means."""
        ...

    def mark_acknowledged(self) -> None:
        """The entry was acknowledged by other means."""
        ...


class JobContext:
    """One attempt at one message, for an ``async def`` handler.

    Attributes:
        data: The JSON object given to ``emit``.
        event: Its event.
        id: The message's id, the same through all attempts.
        attempt: Which attempt this is, from 1.
        deadline: On the monotonic clock, when the handler's time is over; None if it has no timeout.
        delivery: The engine's own context: entry id, lease, delivery count.
    """

    __slots__ = ("_emitter", "attempt", "data", "deadline", "delivery", "envelope", "event", "id", "max_attempts")

    def __init__(self, envelope: Envelope, delivery: Delivery, emitter: Emitter, max_attempts: int) -> None:
        self.envelope = envelope
        self.data = envelope.data
        self.event = envelope.event
        self.id = envelope.id
        self.attempt = envelope.attempt
        self.max_attempts = max_attempts
        self.deadline: float | None = None
        self.delivery = delivery
        self._emitter = emitter

    def __repr__(self) -> str:
        return f"<{type(self).__name__} event={self.event!r} id={self.id!r} attempt={self.attempt}>"

    @property
    def is_last_attempt(self) -> bool:
        """True if a failure now sends the message to the dead letters."""
        return self.attempt >= self.max_attempts

    @property
    def is_overdue(self) -> bool:
        """True once the handler's time is over: a plain function, which nobody can stop, may look at it."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    async def ack(self) -> None:
        """Acknowledge before the handler is through. From here on a failure is final: no retry, no dead letter."""
        await self.delivery.ack()

    async def emit(self, event: str, data: Mapping[str, Any] | None = None, **options: Any) -> Emitted:
        """Emit another message; see ``Emitter.emit``. It is there at once, whatever becomes of this one.

        A retry would emit it again: give it an ``id`` made from this message's.
        """
        return await self._emitter.emit(event, data, **options)

    def log(self, message: str, **fields: Any) -> None:
        """Log a constant message with fields, under this job's id, event and attempt."""
        logger.info(message, extra={"job": _named(self) | fields})


class SyncJobContext(JobContext):
    """The same for a plain function, which runs in a thread: ``ack`` and ``emit`` block until the server answers."""

    __slots__ = ("_loop",)

    def __init__(self, ctx: JobContext, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(ctx.envelope, ctx.delivery, ctx._emitter, ctx.max_attempts)  # noqa: SLF001 - the same thing for a thread
        self.deadline = ctx.deadline
        self._loop = loop

    def ack(self) -> None:  # type: ignore[override]
        """See ``JobContext.ack``."""
        self._wait(self.delivery.ack())

    def emit(self, event: str, data: Mapping[str, Any] | None = None, **options: Any) -> Emitted:  # type: ignore[override]
        """See ``JobContext.emit``."""
        return self._wait(self._emitter.emit(event, data, **options))

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return wait_on_loop(self._loop, call, too_late=lambda: LifecycleError(_ENDED))


def _named(ctx: JobContext) -> dict[str, Any]:
    return {"id": printable(ctx.id), "event": printable(ctx.event), "attempt": ctx.attempt, "entry": ctx.delivery.id}
