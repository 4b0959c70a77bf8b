"""What a handler of the processor gets."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from conquiet.core.causation import Handling, attributed_to
from conquiet.core.redaction import printable
from conquiet.core.signatures import takes_keywords_of
from conquiet.core.threads import wait_on_loop
from conquiet.errors import JobCancelledError, LifecycleError
from conquiet.processor.emit_requests import Emitted, NewMessage
from conquiet.processor.emitter import Emitter
from conquiet.processor.envelope import Envelope
from conquiet.processor.results import report_progress
from conquiet.runtime.context import MessageContext

logger = logging.getLogger("conquiet.processor.job")

T = TypeVar("T")

_ENDED = "the event loop has ended before this handler: the message stays pending and is claimed by another consumer"


class JobContext(Handling):
    """One attempt at one message, for an ``async def`` handler.

    Attributes:
        data: The JSON object given to ``emit``.
        event: Its event.
        stream: The stream it was delivered from.
        id: The message's id, the same through all attempts.
        attempt: Which attempt this is, from 1.
        deadline: On the monotonic clock, when the handler's time is over; None if it has no timeout.
        delivery: The engine's own context: entry id, lease, delivery count.
    """

    __slots__ = ("_emitter", "attempt", "data", "deadline", "delivery", "envelope", "event", "max_attempts")

    def __init__(self, envelope: Envelope, delivery: MessageContext, emitter: Emitter, max_attempts: int) -> None:
        self.envelope = envelope
        self.data = envelope.data
        self.event = envelope.event
        self.id = envelope.id
        self.stream = delivery.stream
        self.caused = self.span_context = None
        self.attempt = envelope.attempt
        self.max_attempts = max_attempts
        self.deadline: float | None = None
        self.delivery = delivery
        self._emitter = emitter

    def __repr__(self) -> str:
        return f"<{type(self).__name__} event={self.event!r} id={self.id!r} attempt={self.attempt}>"

    @property
    def headers(self) -> Mapping[str, str]:
        """What the sender gave as ``headers``; a trace context is among them if the sender was traced."""
        return self.envelope.headers or {}

    @property
    def group(self) -> str:
        """Consumer group of the processor that runs the handler."""
        return self.delivery.group

    @property
    def is_last_attempt(self) -> bool:
        """True if a failure now sends the message to the dead letters."""
        return self.attempt >= self.max_attempts

    @property
    def is_overdue(self) -> bool:
        """True once the handler's time is over: a plain function, which cannot be stopped, may check it."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    @property
    def key(self) -> str | None:
        """The key whose messages run one at a time and in order; None if it has none."""
        return self.envelope.key

    @property
    def cancelled(self) -> bool:
        """True once the job is to be cancelled: a plain function may check it, an ``async def`` one is interrupted.

        Raise, and the job is cancelled; return, and it has had its effect.
        """
        return self.delivery.message.cancel_requested

    def raise_if_cancelled(self) -> None:
        """Raise ``JobCancelledError`` if the job is to be cancelled."""
        if self.cancelled:
            raise JobCancelledError("the job was cancelled", event=self.event, job_id=self.id)

    async def ack(self) -> None:
        """Acknowledge before the handler is through. From here on a failure is final: no retry, no dead letter."""
        await self.delivery.ack()

    @takes_keywords_of(Emitter.emit)
    async def emit(self, event: str, data: Mapping[str, Any] | None = None, **options: Any) -> Emitted:
        """Emit another message; see ``Emitter.emit``. It is there at once, whatever becomes of this one.

        A retry would emit it again: give it an ``id`` made from this message's.
        """
        with attributed_to(self):  # in a batch it is one of several
            return await self._emitter.emit(event, data, **options)

    async def emit_many(self, messages: Iterable[NewMessage], *, stream: str | None = None) -> list[Emitted]:
        """Emit many messages, atomically per chunk; see ``Emitter.emit_many``. They are there at once."""
        with attributed_to(self):
            return await self._emitter.emit_many(messages, stream=stream)

    async def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the job is: ``await ctx.progress(0.4, "page 2 of 5")``. Operators see it; the last one counts.

        One round trip, and nothing else depends on it. The text is shown: no personal data in it.
        """
        await report_progress(self._emitter.client, self.delivery.stream, self.id, fraction, text)

    def log(self, message: str, **fields: Any) -> None:
        """Log a constant message with fields, under this job's id, event and attempt."""
        logger.info(message, extra={"job": _named(self) | fields})


class SyncJobContext(JobContext):
    """The same for a plain function, which runs in a thread: ``ack`` and ``emit`` block until the server answers."""

    __slots__ = ("_loop",)

    def __init__(
        self,
        envelope: Envelope,
        delivery: MessageContext,
        emitter: Emitter,
        max_attempts: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(envelope, delivery, emitter, max_attempts)
        self._loop = loop

    @classmethod
    def of(cls, ctx: JobContext, loop: asyncio.AbstractEventLoop) -> "SyncJobContext":
        """Return the same thing for a thread."""
        made = cls(ctx.envelope, ctx.delivery, ctx._emitter, ctx.max_attempts, loop)  # noqa: SLF001 - of the same kind
        made.deadline = ctx.deadline
        return made

    def ack(self) -> None:  # type: ignore[override]
        """See ``JobContext.ack``."""
        self._wait(self.delivery.ack())

    @takes_keywords_of(Emitter.emit)
    def emit(self, event: str, data: Mapping[str, Any] | None = None, **options: Any) -> Emitted:  # type: ignore[override]
        """See ``JobContext.emit``."""
        with attributed_to(self):
            return self._wait(self._emitter.emit(event, data, **options))

    def emit_many(self, messages: Iterable[NewMessage], *, stream: str | None = None) -> list[Emitted]:  # type: ignore[override]
        """See ``JobContext.emit_many``."""
        with attributed_to(self):
            return self._wait(self._emitter.emit_many(messages, stream=stream))

    def progress(self, fraction: float, text: str = "") -> None:  # type: ignore[override]
        """See ``JobContext.progress``."""
        self._wait(super().progress(fraction, text))

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return wait_on_loop(self._loop, call, too_late=lambda: LifecycleError(_ENDED))


def _named(ctx: JobContext) -> dict[str, Any]:
    return {"id": printable(ctx.id), "event": printable(ctx.event), "attempt": ctx.attempt, "entry": ctx.delivery.id}
