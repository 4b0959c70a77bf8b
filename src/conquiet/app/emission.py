"""Emit messages: directly to Redis, or through the outbox in a transaction.

without a session    sent now, even if the caller fails later
with a session       a row of the outbox in the session's transaction: published if it commits, never otherwise
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from conquiet.app.bus import Bus, Message
from conquiet.app.events import Events
from conquiet.core.clock import Clock
from conquiet.core.tracing import Headers
from conquiet.core.validation import require_seconds
from conquiet.errors import ConfigurationError


class OutboxLike(Protocol):
    """Take messages inside a transaction, and return their ids; ``transactional.Outbox`` implements it."""

    def add(
        self,
        session: Any,
        target: str,
        payload: dict[str, Any],
        key: str | None = None,
        *,
        event: str,
        delay_s: float | None = None,
        headers: Headers | None = None,
    ) -> str:
        """Write a row into the transaction of a synchronous session."""
        ...

    async def add_async(
        self,
        session: Any,
        target: str,
        payload: dict[str, Any],
        key: str | None = None,
        *,
        event: str,
        delay_s: float | None = None,
        headers: Headers | None = None,
    ) -> str:
        """Write a row into the transaction of an asynchronous session."""
        ...

    def add_many(
        self, session: Any, target: str, payloads: list[dict[str, Any]], *, event: str, delay_s: float | None = None
    ) -> list[str]:
        """Write many rows into the transaction of a synchronous session."""
        ...

    async def add_many_async(
        self, session: Any, target: str, payloads: list[dict[str, Any]], *, event: str, delay_s: float | None = None
    ) -> list[str]:
        """Write many rows into the transaction of an asynchronous session."""
        ...


class Emission:
    """Check messages and send them: by the bus, or by the outbox if there is a session.

    Args:
        events: The known events.
        stream_of: Returns the stream of an event.
        bus: Returns the bus for messages outside of a transaction; raises if no server is configured.
        outbox: Returns the outbox for messages of a transaction; raises if no server is configured.
        clock: Returns the source of the time.
    """

    def __init__(
        self,
        events: Events,
        stream_of: Callable[[str], str],
        bus: Callable[[], Bus],
        outbox: Callable[[], OutboxLike],
        clock: Callable[[], Clock],
    ) -> None:
        self._events = events
        self._stream_of = stream_of
        self._bus = bus
        self._outbox = outbox
        self._clock = clock

    async def emit(self, session: Any, event: str, payload: Any, settings: "EmitSettings") -> str:
        """Emit from a coroutine; ``session`` is an asynchronous one, or None."""
        message = self._message(event, payload, settings)
        if session is None:
            return await self._bus().send(message)
        delay_s = self._delay_in_outbox(message)
        if not _is_async(session):
            raise ConfigurationError(
                f"the session is a {type(session).__name__}, which blocks the event loop: call app.emit_sync(…, "
                "session=session), or use an AsyncSession"
            )
        return await self._outbox().add_async(
            session,
            message.stream,
            message.data,
            message.key,
            event=message.event,
            delay_s=delay_s,
            headers=message.headers,
        )

    def emit_sync(self, session: Any, event: str, payload: Any, settings: "EmitSettings") -> str:
        """Emit from a plain function; ``session`` is a synchronous one, or None."""
        message = self._message(event, payload, settings)
        if session is None:
            return self._bus().send_sync(message)
        delay_s = self._delay_in_outbox(message)
        if _is_async(session):
            raise ConfigurationError(
                f"the session is a {type(session).__name__}, which a plain function cannot await: call "
                "'await app.emit(…, session=session)'"
            )
        return self._outbox().add(
            session,
            message.stream,
            message.data,
            message.key,
            event=message.event,
            delay_s=delay_s,
            headers=message.headers,
        )

    async def emit_many(
        self, session: Any, event: str, payloads: "Iterable[Any]", settings: "EmitSettings"
    ) -> list[str]:
        """Emit many messages of one event from a coroutine; ``session`` is an asynchronous one, or None."""
        messages = [self._message(event, payload, settings) for payload in payloads]
        if not messages:
            return []
        if session is None:
            return await self._bus().send_many(messages)
        first, delay_s = messages[0], self._delay_in_outbox(messages[0])
        if not _is_async(session):
            raise ConfigurationError(f"the session is a {type(session).__name__}, which blocks the event loop")
        data = [message.data for message in messages]
        return await self._outbox().add_many_async(session, first.stream, data, event=event, delay_s=delay_s)

    def emit_many_sync(
        self, session: Any, event: str, payloads: "Iterable[Any]", settings: "EmitSettings"
    ) -> list[str]:
        """Emit many messages of one event from a plain function; ``session`` is a synchronous one, or None."""
        messages = [self._message(event, payload, settings) for payload in payloads]
        if not messages:
            return []
        if session is None:
            return self._bus().send_many_sync(messages)
        first, delay_s = messages[0], self._delay_in_outbox(messages[0])
        if _is_async(session):
            raise ConfigurationError(f"the session is a {type(session).__name__}, which a plain function cannot await")
        data = [message.data for message in messages]
        return self._outbox().add_many(session, first.stream, data, event=event, delay_s=delay_s)

    async def emit_and_wait(self, event: str, payload: Any, settings: "EmitSettings", timeout_s: float) -> Any:
        """Emit from a coroutine, and return the handler's result as JSON."""
        return await self._bus().wait_for(self._message(event, payload, settings), timeout_s)

    def emit_and_wait_sync(self, event: str, payload: Any, settings: "EmitSettings", timeout_s: float) -> Any:
        """Emit from a plain function, and return the handler's result as JSON."""
        return self._bus().wait_for_sync(self._message(event, payload, settings), timeout_s)

    def _delay_in_outbox(self, message: Message) -> float | None:
        if message.id is not None:
            raise ConfigurationError(
                "a message in a transaction gets its id from the outbox: leave id out. The transaction keeps it from "
                "being sent twice"
            )
        return message.delay_s if message.at is None else max(0.0, message.at.timestamp() - self._clock().time())

    def _message(self, event: str, payload: Any, settings: "EmitSettings") -> Message:
        known = self._events.find(event)
        data = known.encode({} if payload is None else payload)
        if settings.delay_s is not None:
            require_seconds("delay_s", settings.delay_s, zero_allowed=True)
            if settings.at is not None:
                raise ConfigurationError("give delay_s or at, not both")
        if settings.at is not None:
            _require_moment(settings.at)
        return Message(
            event,
            data,
            self._stream_of(event),
            settings.id,
            settings.delay_s,
            settings.at,
            settings.key,
            settings.headers,
            settings.keep_result_s,
        )


@dataclass(frozen=True, slots=True)
class EmitSettings:
    """Due time, identity, ordering key, headers and result retention of a message."""

    delay_s: float | None = None
    at: datetime | None = None
    id: str | None = None
    key: str | None = None
    headers: Headers | None = None
    keep_result_s: float | None = None


class Emit:
    """Emit messages from an ``async def`` handler: a parameter with this annotation gets it.

    In a handler that has a session, each message is a row of the outbox in the handler's transaction: it is published
    if the handler commits, never otherwise. In a handler without a session it is sent immediately.
    """

    __slots__ = ("_emission", "_session")

    def __init__(self, emission: Emission, session: Any = None) -> None:
        self._emission = emission
        self._session = session

    async def __call__(
        self,
        event: str,
        payload: Any = None,
        *,
        delay_s: float | None = None,
        at: datetime | None = None,
        id: str | None = None,  # noqa: A002 - the word for it
        key: str | None = None,
        headers: Headers | None = None,
    ) -> str:
        """Emit a message and return its id.

        Args:
            event: A known event.
            payload: An object of the event's model, or a mapping that fits it.
            delay_s: Seconds until it is due.
            at: The moment it is due, with a time zone.
            id: Identity of the message; not in a transaction, where the outbox makes an id.
            key: Messages of one key run one at a time and in order.
            headers: Names and texts that are sent with the message.

        Raises:
            ConfigurationError: The event is unknown, or an argument is wrong. Nothing was sent.
            PayloadError: The payload does not fit the event's model. Nothing was sent.
        """
        return await self._emission.emit(self._session, event, payload, EmitSettings(delay_s, at, id, key, headers))

    async def many(
        self, event: str, payloads: "Iterable[Any]", *, delay_s: float | None = None, at: datetime | None = None
    ) -> list[str]:
        """Emit a message for each payload and return their ids. In a transaction they are one statement.

        Args:
            event: A known event.
            payloads: As for a single message. If one of them does not fit, none is sent.
            delay_s: Seconds until they are due.
            at: The moment they are due, with a time zone.
        """
        return await self._emission.emit_many(self._session, event, payloads, EmitSettings(delay_s, at, None))


class SyncEmit:
    """Emit messages from a plain function: a parameter with this annotation gets it. See ``Emit``."""

    __slots__ = ("_emission", "_session")

    def __init__(self, emission: Emission, session: Any = None) -> None:
        self._emission = emission
        self._session = session

    def __call__(
        self,
        event: str,
        payload: Any = None,
        *,
        delay_s: float | None = None,
        at: datetime | None = None,
        id: str | None = None,  # noqa: A002 - the word for it
        key: str | None = None,
        headers: Headers | None = None,
    ) -> str:
        """Emit a message and return its id; see ``Emit``."""
        return self._emission.emit_sync(self._session, event, payload, EmitSettings(delay_s, at, id, key, headers))

    def many(
        self, event: str, payloads: "Iterable[Any]", *, delay_s: float | None = None, at: datetime | None = None
    ) -> list[str]:
        """Emit a message for each payload and return their ids; see ``Emit.many``."""
        return self._emission.emit_many_sync(self._session, event, payloads, EmitSettings(delay_s, at, None))


def _require_moment(at: object) -> None:
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise ConfigurationError("at must be a datetime with a time zone, e.g. datetime.now(UTC)")


def _is_async(session: object) -> bool:
    from conquiet.transactional.unit_of_work import is_async

    return is_async(session)
