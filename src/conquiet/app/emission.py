"""Emit messages: directly to Redis, or through the outbox in a transaction.

without a session    sent now, even if the caller fails later
with a session       a row of the outbox in the session's transaction: published if it commits, never otherwise
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from conquiet.app.bus import Message
from conquiet.app.events import Events
from conquiet.core.signatures import takes_keywords_of
from conquiet.core.tracing import Headers
from conquiet.core.validation import require_seconds
from conquiet.errors import ConfigurationError

if TYPE_CHECKING:
    from conquiet.app.assembly import Assembly


class AppMessageOptions(TypedDict, total=False):
    """Options of every message. ``App.emit`` describes them."""

    id: str | None
    key: str | None
    headers: Headers | None


class AppEmitOptions(AppMessageOptions, total=False):
    """Options of a message that is not waited for."""

    delay_s: float | None
    at: datetime | None


class Emission:
    """Check messages and send them: by the bus, or by the outbox if there is a session.

    Args:
        events: The known events.
        assembly: Has the streams, the bus, the outbox and the clock. The bus and the outbox raise if no server is
            configured.
    """

    def __init__(self, events: Events, assembly: "Assembly") -> None:
        self._events = events
        self._assembly = assembly

    async def emit(self, session: Any, event: str, payload: Any, options: AppEmitOptions) -> str:
        """Emit from a coroutine; ``session`` is an asynchronous one, or None."""
        message = self._message(event, payload, options)
        if session is None:
            return await self._assembly.bus.send(message)
        row = self._row(message, session, in_coroutine=True)
        return await self._assembly.outbox.add_async(session, message.stream, message.data, **row)

    def emit_sync(self, session: Any, event: str, payload: Any, options: AppEmitOptions) -> str:
        """Emit from a plain function; ``session`` is a synchronous one, or None."""
        message = self._message(event, payload, options)
        if session is None:
            return self._assembly.bus.send_sync(message)
        row = self._row(message, session, in_coroutine=False)
        return self._assembly.outbox.add(session, message.stream, message.data, **row)

    async def emit_many(self, session: Any, event: str, payloads: Iterable[Any], options: AppEmitOptions) -> list[str]:
        """Emit many messages of one event from a coroutine; ``session`` is an asynchronous one, or None."""
        messages = [self._message(event, payload, options) for payload in payloads]
        if not messages:
            return []
        if session is None:
            return await self._assembly.bus.send_many(messages)
        row = self._row(messages[0], session, in_coroutine=True)
        data = [message.data for message in messages]
        return await self._assembly.outbox.add_many_async(session, messages[0].stream, data, **row)

    def emit_many_sync(self, session: Any, event: str, payloads: Iterable[Any], options: AppEmitOptions) -> list[str]:
        """Emit many messages of one event from a plain function; ``session`` is a synchronous one, or None."""
        messages = [self._message(event, payload, options) for payload in payloads]
        if not messages:
            return []
        if session is None:
            return self._assembly.bus.send_many_sync(messages)
        row = self._row(messages[0], session, in_coroutine=False)
        data = [message.data for message in messages]
        return self._assembly.outbox.add_many(session, messages[0].stream, data, **row)

    async def emit_and_wait(
        self, event: str, payload: Any, options: AppMessageOptions, keep_result_s: float, timeout_s: float
    ) -> Any:
        """Emit from a coroutine, and return the handler's result as JSON."""
        message = self._message_to_wait_for(event, payload, options, keep_result_s, timeout_s)
        return await self._assembly.bus.wait_for(message, timeout_s)

    def emit_and_wait_sync(
        self, event: str, payload: Any, options: AppMessageOptions, keep_result_s: float, timeout_s: float
    ) -> Any:
        """Emit from a plain function, and return the handler's result as JSON."""
        message = self._message_to_wait_for(event, payload, options, keep_result_s, timeout_s)
        return self._assembly.bus.wait_for_sync(message, timeout_s)

    def _message_to_wait_for(
        self, event: str, payload: Any, options: AppMessageOptions, keep_result_s: float, timeout_s: float
    ) -> Message:
        require_seconds("keep_result_s", keep_result_s)
        require_seconds("timeout_s", timeout_s, zero_allowed=True)
        return self._message(event, payload, options, keep_result_s=keep_result_s)

    def _message(self, event: str, payload: Any, options: Mapping[str, Any], **further: Any) -> Message:
        if unknown := options.keys() - AppEmitOptions.__optional_keys__:  # of a caller without a type checker
            raise TypeError(f"emit got an unexpected keyword argument {min(unknown)!r}")
        if "keep_result_s" in further and (refused := options.keys() & {"delay_s", "at"}):
            raise ConfigurationError(f"emit_and_wait takes no {min(refused)}: its message is sent immediately")
        known = self._events.find(event)
        data = known.encode({} if payload is None else payload)
        delay_s, at = options.get("delay_s"), options.get("at")
        if delay_s is not None:
            require_seconds("delay_s", delay_s, zero_allowed=True)
            if at is not None:
                raise ConfigurationError("give delay_s or at, not both")
        if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
            raise ConfigurationError("at must be a datetime with a time zone, e.g. datetime.now(UTC)")
        return Message(self._assembly.stream_of(event), event, data, {**options, **further})

    def _row(self, message: Message, session: Any, *, in_coroutine: bool) -> dict[str, Any]:
        """Check a message of a transaction, and return the arguments of its row in the outbox."""
        from conquiet.transactional.unit_of_work import is_async

        if message.options.get("id") is not None:
            raise ConfigurationError(
                "a message in a transaction gets its id from the outbox: leave id out. The transaction keeps it from "
                "being sent twice"
            )
        if is_async(session) != in_coroutine:
            problem = (
                "blocks the event loop: call app.emit_sync(…, session=session), or use an AsyncSession"
                if in_coroutine
                else "a plain function cannot await: call 'await app.emit(…, session=session)'"
            )
            raise ConfigurationError(f"the session is a {type(session).__name__}, which {problem}")
        row = {name: message.options[name] for name in ("delay_s", "key", "headers") if name in message.options}
        if (at := message.options.get("at")) is not None:
            row["delay_s"] = max(0.0, at.timestamp() - self._assembly.clock.time())
        return {"event": message.event, **row}


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
        options = AppEmitOptions(delay_s=delay_s, at=at, id=id, key=key, headers=headers)
        return await self._emission.emit(self._session, event, payload, options)

    async def many(
        self,
        event: str,
        payloads: Iterable[Any],
        *,
        delay_s: float | None = None,
        at: datetime | None = None,
        headers: Headers | None = None,
    ) -> list[str]:
        """Emit a message for each payload and return their ids. In a transaction they are one statement.

        Args:
            event: A known event.
            payloads: As for a single message. If one of them does not fit, none is sent.
            delay_s: Seconds until they are due.
            at: The moment they are due, with a time zone.
            headers: Names and texts that are sent with each message.
        """
        options = AppEmitOptions(delay_s=delay_s, at=at, headers=headers)
        return await self._emission.emit_many(self._session, event, payloads, options)


class SyncEmit:
    """Emit messages from a plain function: a parameter with this annotation gets it. See ``Emit``."""

    __slots__ = ("_emission", "_session")

    def __init__(self, emission: Emission, session: Any = None) -> None:
        self._emission = emission
        self._session = session

    @takes_keywords_of(Emit.__call__)
    def __call__(self, event: str, payload: Any = None, **options: Unpack[AppEmitOptions]) -> str:
        """Emit a message and return its id; see ``Emit``."""
        return self._emission.emit_sync(self._session, event, payload, options)

    def many(
        self,
        event: str,
        payloads: Iterable[Any],
        *,
        delay_s: float | None = None,
        at: datetime | None = None,
        headers: Headers | None = None,
    ) -> list[str]:
        """Emit a message for each payload and return their ids; see ``Emit.many``."""
        options = AppEmitOptions(delay_s=delay_s, at=at, headers=headers)
        return self._emission.emit_many_sync(self._session, event, payloads, options)
