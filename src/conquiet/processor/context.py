"""The context that is passed to a handler of the processor."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from conquiet.core.causation import Handling, attributed_to
from conquiet.core.redaction import printable
from conquiet.core.signatures import takes_keywords_of
from conquiet.core.threads import wait_on_loop
from conquiet.errors import JobCancelledError, LifecycleError
from conquiet.processor.emit_requests import Emitted, NewMessage
from conquiet.processor.emitter import Emitter
from conquiet.processor.envelope import Envelope
from conquiet.processor.results import Progress, new_progress
from conquiet.runtime.context import MessageContext

logger = logging.getLogger("conquiet.processor.job")

T = TypeVar("T")

_ENDED = "the event loop has ended before this handler: the message stays pending and is claimed by another consumer"


class JobEmitter(Protocol):
    """Emitter operations that a context calls."""

    @property
    def emit(self) -> Callable[..., Coroutine[Any, Any, Emitted]]:
        """Emit one message; see ``Emitter.emit``."""
        ...

    async def emit_many(self, messages: Iterable[NewMessage], *, stream: str | None = None) -> list[Emitted]:
        """Emit many messages; see ``Emitter.emit_many``."""
        ...

    async def report_progress(self, stream: str, job_id: str, progress: Progress) -> None:
        """Write the progress of a job."""
        ...


class JobContext(Handling, eq=False):
    """One attempt at one message, for an ``async def`` handler.

    Attributes:
        data: The JSON object that was passed to ``emit``.
        event: Its event.
        stream: The stream it was delivered from.
        id: The message id, constant over all attempts.
        attempt: Number of this attempt, from 1.
        max_attempts: The attempts it gets in total.
        deadline: When the handler times out, on the monotonic clock. None if it has no timeout.
        envelope: The message as stored.
        delivery: The context of the engine: entry id, lease, delivery count.
    """

    event: str
    data: dict[str, Any]
    attempt: int
    max_attempts: int
    deadline: float | None
    envelope: Envelope
    delivery: MessageContext
    _emitter: JobEmitter

    def __repr__(self) -> str:
        return f"<{type(self).__name__} event={self.event!r} id={self.id!r} attempt={self.attempt}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show the fields of ``repr()`` without the payload: rich would show every field of a struct."""
        return [("event", self.event), ("id", self.id), ("attempt", self.attempt)]

    @property
    def headers(self) -> Mapping[str, str]:
        """The ``headers`` of the sender. They include a trace context if the sender was traced."""
        return self.envelope.headers or {}

    @property
    def group(self) -> str:
        """Consumer group of the processor that runs the handler."""
        return self.delivery.group

    @property
    def is_last_attempt(self) -> bool:
        """True if a failure of this attempt dead-letters the message."""
        return self.attempt >= self.max_attempts

    @property
    def is_overdue(self) -> bool:
        """True after the deadline. A plain function, which cannot be stopped, may check it."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    @property
    def key(self) -> str | None:
        """The ordering key: messages of one key run one at a time and in order. None without a key."""
        return self.envelope.key

    @property
    def cancelled(self) -> bool:
        """True once cancellation was requested. A plain function may check it; an ``async def`` handler is interrupted.

        If the handler raises, the job is cancelled. If it returns, the job has succeeded.
        """
        return self.delivery.message.cancel_requested

    def raise_if_cancelled(self) -> None:
        """Raise ``JobCancelledError`` if cancellation was requested."""
        if self.cancelled:
            raise JobCancelledError("the job was cancelled", event=self.event, job_id=self.id)

    async def ack(self) -> None:
        """Acknowledge before the handler has ended. A later failure is final: no retry, no dead letter."""
        await self.delivery.ack()

    @takes_keywords_of(Emitter.emit)
    async def emit(self, event: str, data: Mapping[str, Any] | None = None, **options: Any) -> Emitted:
        """Emit another message; see ``Emitter.emit``. It is written immediately, even if this handler fails later.

        A retry would emit it again: pass an ``id`` derived from the id of this message.
        """
        with attributed_to(self):  # in a batch there are several contexts
            return await self._emitter.emit(event, data, **options)

    async def emit_many(self, messages: Iterable[NewMessage], *, stream: str | None = None) -> list[Emitted]:
        """Emit many messages, atomically per chunk; see ``Emitter.emit_many``. They are written immediately."""
        with attributed_to(self):
            return await self._emitter.emit_many(messages, stream=stream)

    async def progress(self, fraction: float, text: str = "") -> None:
        """Report the progress of the job to operators: ``await ctx.progress(0.4, "page 2 of 5")``.

        Only the last report is kept. It costs one round trip and affects nothing else. The text is displayed,
        so it must hold no personal data.
        """
        await self._emitter.report_progress(self.delivery.stream, self.id, new_progress(fraction, text))

    def log(self, message: str, **fields: Any) -> None:
        """Log a constant message with fields and with the id, event and attempt of this job."""
        logger.info(message, extra={"job": _named(self) | fields})


class SyncJobContext(JobContext, eq=False):
    """``JobContext`` for a plain function, which runs in a thread. ``ack`` and ``emit`` block until the reply."""

    _loop: asyncio.AbstractEventLoop

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


def job_context(envelope: Envelope, delivery: MessageContext, emitter: JobEmitter, max_attempts: int) -> JobContext:
    """Return the context of a delivered message, for an ``async def`` handler."""
    return JobContext(
        delivery.message.stream,
        envelope.id,
        None,
        None,
        envelope.event,
        envelope.data,
        envelope.attempt,
        max_attempts,
        None,
        envelope,
        delivery,
        emitter,
    )


def in_thread(ctx: JobContext, loop: asyncio.AbstractEventLoop) -> SyncJobContext:
    """Return a copy of a context for a plain function."""
    fields: tuple[Any, ...] = (*msgspec.structs.astuple(ctx), loop)
    return SyncJobContext(*fields)


def _named(ctx: JobContext) -> dict[str, Any]:
    return {"id": printable(ctx.id), "event": printable(ctx.event), "attempt": ctx.attempt, "entry": ctx.delivery.id}
