"""The methods of ``App`` that emit messages.

    emit             ──▶ Redis, or the outbox in the transaction of a session
    emit_and_wait    ──▶ message with keep_result_s ──▶ any worker: the handler returns Price(…)
                                                                  │ JSON, kept in Redis
    Price(…) ◀── ResultType ◀── waits for it ◀────────────────────┘

The type of a result is ``returns``, or the return annotation of the handler in this app. Without either the JSON value
is returned.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar, Unpack, overload

from conquiet.app.declarations import Declarations
from conquiet.app.emission import AppEmitOptions, AppMessageOptions, Emission
from conquiet.app.payloads import ResultType, return_type
from conquiet.core.signatures import takes_keywords_of
from conquiet.core.tracing import Headers
from conquiet.errors import ConfigurationError

T = TypeVar("T")


class AppWaitOptions(AppMessageOptions, total=False):
    """Options of a message that is waited for. ``App.emit_and_wait`` describes them."""

    timeout_s: float
    keep_result_s: float


class EmittingApp(Declarations):
    """The part of ``App`` that emits messages."""

    emission: Emission

    async def emit(
        self,
        event: str,
        payload: Any = None,
        *,
        session: Any = None,
        delay_s: float | None = None,
        at: datetime | None = None,
        id: str | None = None,  # noqa: A002 - the word for it
        key: str | None = None,
        headers: Headers | None = None,
    ) -> str:
        """Emit a message and return its id.

        Args:
            event: An event that the app handles or declares.
            payload: An object of the event's model, or a mapping that fits it.
            session: An ``AsyncSession`` or ``AsyncConnection``: the message is published if its transaction commits.
                None sends it now.
            delay_s: Seconds until it is due.
            at: The moment it is due, with a time zone.
            id: Identity of the message: a second message with this id is not emitted. Not with a session.
            key: Messages of one key run one at a time and in order, over all hosts; see docs/ordering.md.
            headers: Names and texts that are sent with the message: ``ctx.headers`` of a ``JobContext``.

        Raises:
            ConfigurationError: The event is unknown, or an argument is wrong. Nothing was sent.
            PayloadError: The payload does not fit the event's model. Nothing was sent.
            QueueError: Redis refused, or did not reply.
        """
        options = AppEmitOptions(delay_s=delay_s, at=at, id=id, key=key, headers=headers)
        return await self.emission.emit(session, event, payload, options)

    @takes_keywords_of(emit)
    def emit_sync(
        self, event: str, payload: Any = None, *, session: Any = None, **options: Unpack[AppEmitOptions]
    ) -> str:
        """Do what ``emit`` does, from a plain function: with a ``Session``, ``Connection`` or ``DbSession``."""
        return self.emission.emit_sync(session, event, payload, options)

    @overload
    async def emit_and_wait(
        self, event: str, payload: Any = None, *, returns: type[T], **options: Unpack[AppWaitOptions]
    ) -> T: ...

    @overload
    async def emit_and_wait(
        self, event: str, payload: Any = None, *, returns: None = None, **options: Unpack[AppWaitOptions]
    ) -> Any: ...

    async def emit_and_wait(
        self,
        event: str,
        payload: Any = None,
        *,
        returns: Any = None,
        timeout_s: float = 30.0,
        keep_result_s: float = 3_600.0,
        id: str | None = None,  # noqa: A002 - the word for it
        key: str | None = None,
        headers: Headers | None = None,
    ) -> Any:
        """Emit a message and return the result of its handler, after all its attempts. Any worker may handle it.

        It is sent immediately, in no transaction: a message that is not committed cannot be waited for.

        Args:
            event: An event that the app handles or declares.
            payload: An object of the event's model, or a mapping that fits it.
            returns: Type of the result. Left out, it is the return annotation of the handler in this app; without one
                the JSON value is returned.
            timeout_s: Longest wait. The job continues after it.
            keep_result_s: Seconds for which the result is kept after the job's end.
            id: Identity of the message. A message that was emitted before is waited for and not emitted again.
            key: Messages of one key run one at a time and in order: the wait includes the messages ahead of it.
            headers: Names and texts that are sent with the message.

        Raises:
            JobFailedError: The job is dead.
            JobCancelledError: It was cancelled.
            JobTimeoutError: It has not ended in time.
            JobResultError: It has succeeded, and its result does not fit the type.
            PayloadError: The payload does not fit the event's model. Nothing was sent.
            ConfigurationError: The event is unknown, or an argument is wrong. Nothing was sent.
            QueueError: Redis refused, or did not reply.
        """
        convert = self._conversion(event, returns)
        options = AppMessageOptions(id=id, key=key, headers=headers)
        return convert(await self.emission.emit_and_wait(event, payload, options, keep_result_s, timeout_s))

    @overload
    def emit_and_wait_sync(
        self, event: str, payload: Any = None, *, returns: type[T], **options: Unpack[AppWaitOptions]
    ) -> T: ...

    @overload
    def emit_and_wait_sync(
        self, event: str, payload: Any = None, *, returns: None = None, **options: Unpack[AppWaitOptions]
    ) -> Any: ...

    @takes_keywords_of(emit_and_wait)
    def emit_and_wait_sync(
        self,
        event: str,
        payload: Any = None,
        *,
        returns: Any = None,
        timeout_s: float = 30.0,
        keep_result_s: float = 3_600.0,
        **options: Unpack[AppMessageOptions],
    ) -> Any:
        """Do what ``emit_and_wait`` does, from a plain function. The calling thread waits."""
        convert = self._conversion(event, returns)
        return convert(self.emission.emit_and_wait_sync(event, payload, options, keep_result_s, timeout_s))

    def _conversion(self, event: str, returns: Any) -> Callable[[Any], Any]:
        if returns is not None:
            return ResultType(event, returns).convert
        handler = self.registry.handlers.get(event)
        kind = None if handler is None else return_type(handler.function)
        if kind is None:
            return _as_it_is
        try:
            return ResultType(event, kind).convert
        except ConfigurationError:  # an annotation for readers: no type was requested
            return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value
