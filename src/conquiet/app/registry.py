"""The declarations of an application: events, handlers, queues, schedules and resources. Filled by the decorators."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conquiet.app.emission import Emit, SyncEmit
from conquiet.app.events import Event, Events
from conquiet.app.parameters import SessionKind, Signature, SignatureReader, Source
from conquiet.app.resources import Resources
from conquiet.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from conquiet.scheduler.entries import ScheduleEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A function that handles an event, a queue or a schedule.

    Attributes:
        event: Decodes its payloads.
        function: The user's function.
        signature: Its parameters.
        once: True if an inbox row keeps its effect from happening twice.
        options: Of ``Processor.handler``; for a queue, of ``RabbitConsumer``.
        shares_transaction: The function is called for each message of a batch, each time in a savepoint.
    """

    event: Event
    function: Callable[..., Any]
    signature: Signature
    once: bool
    options: dict[str, Any]
    shares_transaction: bool = False

    @property
    def needs_inbox(self) -> bool:
        """True if its transactions write an inbox row."""
        return self.once and self.signature.session is not None

    @property
    def takes_lists(self) -> bool:
        """True if the function is called with lists."""
        return self.options.get("batch") is not None and not self.shares_transaction


class Registry:
    """The declared parts of an application.

    Args:
        require_session: Called with the kind of session that a function takes, the name of its parameter, and what
            the function is; raises if the app cannot provide the session.
    """

    def __init__(self, require_session: Callable[[SessionKind, str, str], None]) -> None:
        self._require_session = require_session
        self.events = Events()
        self.resources = Resources()
        self.handlers: dict[str, Handler] = {}
        self.queues: dict[str, Handler] = {}
        self.schedules: dict[str, ScheduleEntry] = {}
        self.streams: dict[str, str] = {}
        """Streams of the declared events, which other services handle."""

    def add_handler(
        self,
        event: str,
        function: Callable[..., Any],
        options: dict[str, Any],
        *,
        once: bool,
        shares_transaction: bool = False,
    ) -> None:
        """Register the handler of an event.

        Raises:
            ConfigurationError: The event has a handler already, or a parameter has no source.
        """
        if event in self.handlers:
            other = self.handlers[event].function
            raise ConfigurationError(
                f"event {event!r} has a handler already, {_place(other)}: an event has one handler in an app. Call "
                "both functions from one handler, or let another app (another group) handle it too"
            )
        what = f"handler of {event!r}"
        lists = options.get("batch") is not None and not shares_transaction
        signature = self._read(function, what, once=once, lists=lists)
        if shares_transaction and signature.session is None:
            raise ConfigurationError(
                f"the {what} has share_transaction= and no session: without a session there is no transaction to "
                "share. Ask for a session, or leave share_transaction out"
            )
        self.handlers[event] = Handler(
            event=self.events.add(event, signature.payload),
            function=function,
            signature=signature,
            once=once,
            options=options,
            shares_transaction=shares_transaction,
        )

    def add_queue(self, queue: str, function: Callable[..., Any], options: dict[str, Any], *, once: bool) -> None:
        """Register the handler of a RabbitMQ queue."""
        if queue in self.queues:
            raise ConfigurationError(f"queue {queue!r} has a handler already")
        what = f"handler of queue {queue!r}"
        lists = options.get("batch") is not None
        signature = self._read(function, what, once=once, lists=lists)
        if signature.has(Source.CONTEXT):
            instead = "current_deliveries" if lists else "current_delivery"
            raise ConfigurationError(
                f"the {what} asks for a JobContext, which messages of RabbitMQ do not have: call "
                f"conquiet.rabbit.{instead}() in it"
            )
        self.queues[queue] = Handler(
            event=Event(queue, signature.payload), function=function, signature=signature, once=once, options=options
        )

    def add_schedule(
        self, entry: "ScheduleEntry", function: Callable[..., Any], options: dict[str, Any], *, once: bool
    ) -> None:
        """Register a schedule and the handler of its internal event."""
        if entry.name in self.schedules:
            raise ConfigurationError(
                f"a schedule named {entry.name!r} exists already: give one of them a name, "
                "@app.schedule(when, name='…')"
            )
        what = f"function of schedule {entry.name!r}"
        signature = self._read(function, what, once=once)
        if signature.payload is not None:
            raise ConfigurationError(f"the {what} asks for a payload, which a schedule does not have")
        self.schedules[entry.name] = entry
        self.handlers[entry.event] = Handler(
            event=Event(entry.event), function=function, signature=signature, once=once, options=options
        )

    def _read(self, function: Callable[..., Any], what: str, *, once: bool, lists: bool = False) -> Signature:
        reader = SignatureReader(provided=self.resources.__contains__, special=_special(), what=what, lists=lists)
        signature = reader.read(function)
        _require_same_kind(signature, what)
        if signature.session is not None:
            self._require_session(signature.session, signature.session_name, what)
        elif not once:
            raise ConfigurationError(
                f"the {what} has once=False and no session: without a transaction there is no inbox row to leave out"
            )
        return signature


def _special() -> dict[Any, Source]:
    special: dict[Any, Source] = {Emit: Source.EMIT, SyncEmit: Source.EMIT}
    try:
        from conquiet.processor.context import JobContext, SyncJobContext
    except MissingExtraError:  # an app of RabbitMQ queues alone
        return special
    return special | {JobContext: Source.CONTEXT, SyncJobContext: Source.CONTEXT}


def _require_same_kind(signature: Signature, what: str) -> None:
    """Raise ``ConfigurationError`` for an ``Emit`` that the function cannot call."""
    for parameter in signature.parameters:
        if parameter.annotation is Emit and not signature.is_async:
            raise ConfigurationError(
                f"parameter {parameter.name!r} of the {what} is an Emit, which a plain function cannot await: ask for "
                "SyncEmit, or make it an async def"
            )
        if parameter.annotation is SyncEmit and signature.is_async:
            raise ConfigurationError(
                f"parameter {parameter.name!r} of the {what} is a SyncEmit, which blocks the event loop in an async "
                "def: ask for Emit"
            )


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', '')}"
