"""Call a handler with the values of its parameters, and adapt it to the engine that runs it.

    Processor        handle(ctx)          payload that does not fit ──▶ Reject: dead-lettered immediately
    RabbitConsumer   syncer(message)      payload that does not fit ──▶ DeadLetterNow: dead-lettered immediately
                                          any other failure ──▶ False: requeued, then dead-lettered

The order for one message: payload, resources, transaction, handler. A payload that does not fit costs no transaction,
and resources are cleaned up after the commit.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from conquiet.app.database import Database
from conquiet.app.emission import Emission, Emit, SyncEmit
from conquiet.app.events import Event
from conquiet.app.parameters import Parameter, SessionKind, Signature, Source
from conquiet.app.resources import Resources
from conquiet.core.functions import reject_awaitable, reject_unawaited
from conquiet.core.log import FactLogger
from conquiet.core.threads import run_without_loop, wait_on_loop
from conquiet.errors import InfrastructureError, LifecycleError, MissingExtraError, PayloadError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from conquiet.core.deduplicator import Deduplicator

logger = FactLogger(__name__)

T = TypeVar("T")


class MessageLogger(logging.LoggerAdapter[logging.Logger]):
    """Add the message's id and event to each log line."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge the message's facts with the ``extra`` of the call."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


@dataclass(slots=True)
class Run:
    """One run of a handler. ``transactional`` reads the attributes of the message from it.

    Attributes:
        origin: The ``JobContext``, or the message of RabbitMQ.
        payload: The model's object.
        made: Resources by type.
    """

    origin: Any
    payload: Any = field(repr=False)
    made: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.origin, name)


class WithoutInbox:
    """Replace the ``Inbox`` of handlers with ``once=False``: every delivery counts as the first."""

    def once(self, _session: Any, _msg: Any) -> "nullcontext[bool]":
        """Return a check that writes nothing."""
        return nullcontext(enter_result=True)

    def once_many(self, _session: Any, msgs: "Sequence[Any]") -> "nullcontext[list[bool]]":
        """Return a check of many messages that writes nothing."""
        return nullcontext([True] * len(msgs))

    @property
    def rows(self) -> "WithoutInbox":
        """This object: there are no rows."""
        return self

    def forget(self, _unit: Any, _msgs: "Sequence[Any]") -> None:
        """Do nothing: there are no rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerEnvironment:
    """The shared environment of an application's handlers.

    Attributes:
        resources: Declared resources.
        emission: Sends their messages.
        database: Returns the app's database.
        inbox: Name of the inbox table.
        loop: The event loop on which resources are opened.
    """

    resources: Resources
    emission: Emission
    database: Callable[[], Database]
    inbox: str
    loop: asyncio.AbstractEventLoop


class Invocation:
    """Calls one function.

    Args:
        function: The user's function.
        signature: Its parameters.
        event: Its event, which decodes payloads.
        environment: Shared with the other handlers.
        once: False runs it without an inbox.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Signature,
        event: Event,
        environment: HandlerEnvironment,
        *,
        once: bool,
    ) -> None:
        self._function = function
        self._signature = signature
        self._event = event
        self._environment = environment
        self._once = once
        self._logger = logging.getLogger(function.__module__)

    # ------------------------------------------------------------ for a Processor
    def for_processor(self) -> Callable[[Any], Any]:
        """Return the handler to register with a ``Processor``."""
        if self._signature.session is None and not self._signature.resources:
            return self._without_transaction()
        work, decoded = self._work(self._call, "for_processor"), self._decoder()

        async def handle(ctx: Any) -> object:
            run = Run(ctx, decoded(ctx))
            async with self._opened(self._signature.resources) as run.made:
                result = work(run)
                return await result if self._signature.is_async else result

        return like(work, self._entry_point(handle))

    def _without_transaction(self) -> Callable[[Any], Any]:
        """Return the handler without the layers that it does not need: they cost a no-op a tenth of its rate."""
        function, decoded, arguments = self._function, self._decoder(), self._arguments
        if not self._signature.is_async:
            return lambda ctx: function(**arguments(Run(ctx, decoded(ctx)), None))
        if self._takes_payload_only():
            return self._with_payload()

        async def handle(ctx: Any) -> object:
            return await function(**arguments(Run(ctx, decoded(ctx)), None))

        return handle

    def _takes_payload_only(self) -> bool:
        """Return whether the payload is the only argument, and can be passed by position."""
        first = next(iter(inspect.signature(self._function).parameters.values()), None)
        return (
            first is not None
            and first.kind in {first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD}
            and [(one.name, one.source) for one in self._signature.parameters] == [(first.name, Source.PAYLOAD)]
        )

    def _with_payload(self) -> Callable[[Any], Any]:
        from conquiet.processor.policy import Reject

        function, decode = self._function, self._event.decoder()
        if self._event.is_plain:

            async def handle_data(ctx: Any) -> object:
                return await function(ctx.data)

            return handle_data

        async def handle_payload(ctx: Any) -> object:
            try:
                payload = decode(ctx.data)
            except PayloadError as error:
                raise Reject(str(error)) from error  # the text names the field and holds no value
            return await function(payload)

        return handle_payload

    def _decoder(self) -> Callable[[Any], Any]:
        """Return the function from a ``JobContext`` to the payload; it raises ``Reject`` if that does not fit."""
        from conquiet.processor.policy import Reject

        if self._signature.payload is None:
            return lambda _ctx: None
        decode = self._event.decoder()

        def decoded(ctx: Any) -> Any:
            try:
                return decode(ctx.data)
            except PayloadError as error:
                raise Reject(str(error)) from error  # the text names the field and holds no value

        return decoded

    # ------------------------------------------------------------ for a RabbitConsumer
    def for_rabbit(self) -> Callable[[Any], Any]:
        """Return the syncer to give to a ``RabbitConsumer``."""
        work = self._work(self._call, "for_rabbit")

        async def syncer(message: Any) -> bool:
            try:
                run = Run(message, self._message_payload(message))
                async with self._opened(self._signature.resources) as run.made:
                    result = work(run)
                    return (await result if self._signature.is_async else result) is not False
            except Exception as error:  # noqa: BLE001 - a handler may raise anything
                return self._refused(error)

        return like(work, self._entry_point(syncer))

    def _message_payload(self, message: Any) -> Any:
        return None if self._signature.payload is None else self._event.decode(message)

    def _refused(self, error: Exception) -> bool:
        from conquiet.rabbit.syncer import DeadLetterNow, Postpone

        if isinstance(error, InfrastructureError | Postpone | DeadLetterNow):
            raise error
        if isinstance(error, (PayloadError, *_rejections())):
            raise DeadLetterNow(str(error)) from None  # the text names the field and holds no value
        # Return False and do not raise: RabbitConsumer treats an error of the syncer as a fault of the whole process.
        path = error.path if isinstance(error, PayloadError) else None
        logger.failure(logging.WARNING, "handler of queue %(queue)s failed", error, queue=self._event.name, path=path)
        return False

    # ------------------------------------------------------------ for both
    def _work(self, call: Callable[..., Coroutine[Any, Any, object]], adapter: str) -> Callable[[Any], Any]:
        """Return a callable that runs ``call``, by an adapter of ``transactional`` if the handler has a session.

        Args:
            call: Called with a ``Run`` or several, and with the session.
            adapter: Name of the adapter.
        """
        function, kind = self._entry_point(call), self._signature.session
        if kind is None:
            return function
        from conquiet import transactional

        if kind is SessionKind.CONNECTION:
            function = _on_connection(function)
        inbox: str | Deduplicator = self._environment.inbox if self._once else WithoutInbox()
        work: Callable[[Any], Any] = getattr(transactional, adapter)(function, engine=self._source(kind), inbox=inbox)
        return work

    def _source(self, kind: SessionKind) -> Any:
        """Return the engine or session maker for sessions of this kind."""
        if kind is not SessionKind.FOREIGN:
            return self._environment.database().source_for(kind)
        (annotation,) = (one.annotation for one in self._signature.parameters if one.source is Source.SESSION)
        return annotation.conquiet_source()

    def _entry_point(self, call: Callable[..., Coroutine[Any, Any, object]]) -> Callable[..., Any]:
        """Return what an engine calls: the coroutine function itself, or a plain function if the handler is one.

        What surrounds a handler is written once, as coroutines. Those around a plain function never suspend.
        """
        return call if self._signature.is_async else lambda *arguments: run_without_loop(call(*arguments))

    def _opened(self, resources: tuple[type, ...]) -> "AbstractAsyncContextManager[dict[Any, Any]]":
        """Return the block in which these resources are open."""
        if not resources:
            return nullcontext({})
        opened = self._environment.resources.open(resources)
        return opened if self._signature.is_async else ResourcesOnLoop(opened, self._environment.loop)

    async def _call(self, run: Run, session: Any = None) -> object:
        result = self._function(**self._arguments(run, session))
        return self._checked(await result if self._signature.is_async else result)

    def _checked(self, result: object) -> object:
        """Return the result of the function. Refuse a coroutine: its work was not done."""
        if result is not None:
            if self._signature.is_async:
                reject_unawaited(result)
            else:
                reject_awaitable("the handler", result)
        return result

    def _arguments(self, run: Run, session: Any) -> dict[str, Any]:
        return {parameter.name: self._value(parameter, run, session) for parameter in self._signature.parameters}

    def _value(self, parameter: Parameter, run: Run, session: Any) -> Any:
        match parameter.source:
            case Source.PAYLOAD:
                return run.payload
            case Source.SESSION:
                return session
            case Source.CONTEXT:
                return run.origin
            case Source.EMIT:
                emits = Emit if self._signature.is_async else SyncEmit
                return emits(self._environment.emission, session)
            case Source.LOGGER:
                facts = {"event_name": self._event.name, "message_id": getattr(run.origin, "id", None)}
                return MessageLogger(self._logger, facts)
            case Source.RESOURCE:
                return run.made[parameter.annotation]


class ResourcesOnLoop:
    """Open and clean up the resources of a plain function on the event loop, while its thread waits. Never suspends."""

    def __init__(self, opened: "AbstractAsyncContextManager[dict[Any, Any]]", loop: asyncio.AbstractEventLoop) -> None:
        self._opened = opened
        self._loop = loop

    async def __aenter__(self) -> dict[Any, Any]:
        return self._wait(self._opened.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._wait(self._opened.__aexit__(kind, error, trace))

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return wait_on_loop(
            self._loop, call, too_late=lambda: LifecycleError("the event loop has ended before this handler")
        )


def _rejections() -> tuple[type[Exception], ...]:
    """Return the errors with which a handler has its message dead-lettered; none in an app without Redis."""
    try:
        from conquiet.processor.policy import Reject
    except MissingExtraError:
        return ()
    return (Reject,)


def _on_connection(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, called with the connection of a ``DbSession``."""
    return lambda what, db: function(what, db.connection)


def like(work: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy the attributes set by ``transactional`` (such as the pool size), which the engine reads at its start."""
    function.__dict__.update(getattr(work, "__dict__", {}))
    return function
