"""Read the parameters of a handler and their sources from its signature. Pure.

A parameter gets its value by its annotation:

    a payload model       the message, converted (``payloads``)
    a session             the transaction that holds the inbox row
    JobContext            attempt, id, event
    Emit                  emit messages; with a session: published if the transaction commits
    logging.Logger        a logger that adds the message's id to every line
    anything else         a resource declared with ``app.provide(Type, factory)``

Registering a handler fails if a parameter has no source; the error names the parameter.
"""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from conquiet.app.payloads import is_model, type_name
from conquiet.core.functions import is_coroutine_function, reject_generator_function
from conquiet.errors import ConfigurationError


class Source(Enum):
    """The source of a parameter's value."""

    PAYLOAD = "payload"
    SESSION = "session"
    CONTEXT = "context"
    EMIT = "emit"
    LOGGER = "logger"
    RESOURCE = "resource"


class SessionKind(Enum):
    """The kinds of session that a handler can have."""

    DB_SESSION = "conquiet.DbSession"
    SESSION = "sqlalchemy.orm.Session"
    CONNECTION = "sqlalchemy.Connection"
    ASYNC_SESSION = "sqlalchemy.ext.asyncio.AsyncSession"
    ASYNC_CONNECTION = "sqlalchemy.ext.asyncio.AsyncConnection"
    FOREIGN = "session of another framework"

    @property
    def is_async(self) -> bool:
        """True for the kinds that are awaited."""
        return self in {SessionKind.ASYNC_SESSION, SessionKind.ASYNC_CONNECTION}


# By home and name: a handler without a session must not need SQLAlchemy.
_SESSIONS: Mapping[tuple[str, str], SessionKind] = {
    ("conquiet.db.session", "DbSession"): SessionKind.DB_SESSION,
    ("sqlalchemy.orm.session", "Session"): SessionKind.SESSION,
    ("sqlalchemy.engine.base", "Connection"): SessionKind.CONNECTION,
    ("sqlalchemy.ext.asyncio.session", "AsyncSession"): SessionKind.ASYNC_SESSION,
    ("sqlalchemy.ext.asyncio.engine", "AsyncConnection"): SessionKind.ASYNC_CONNECTION,
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter and its source.

    Attributes:
        name: Name in the signature.
        source: The source of its value.
        annotation: Its type, without ``Annotated``.
    """

    name: str
    source: Source
    annotation: Any = None


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a function.

    Attributes:
        parameters: In order.
        is_async: True for ``async def``.
        payload: The payload model; None without a parameter for the payload.
        session: The kind of session; None without a parameter for a session.
    """

    parameters: tuple[Parameter, ...]
    is_async: bool
    payload: Any = None
    session: SessionKind | None = None
    resources: tuple[type, ...] = field(default=())

    def has(self, source: Source) -> bool:
        """Return True if a parameter has this source."""
        return any(parameter.source is source for parameter in self.parameters)


def session_kind(annotation: object) -> SessionKind | None:
    """Return the kind of session that an annotation names, subclasses included; None if it is none."""
    if not isinstance(annotation, type):
        return None
    if callable(getattr(annotation, "conquiet_source", None)):  # such as conquiet.contrib.django.DjangoTransaction
        return SessionKind.FOREIGN
    for kind in annotation.__mro__:
        found = _SESSIONS.get((kind.__module__, kind.__qualname__))
        if found is not None:
            return found
    return None


def read_signature(
    function: Callable[..., Any],
    *,
    provided: Callable[[Any], bool],
    special: Mapping[Any, Source],
    what: str,
    lists: bool = False,
) -> Signature:
    """Return the parameters of a function with their sources.

    Args:
        function: The handler or the schedule's function.
        provided: Returns whether a resource of this type was declared.
        special: Types with a fixed source (``JobContext``, ``Emit``).
        what: Names the function in errors: "handler of 'order.paid'".
        lists: True for a batch handler, with ``list[Model]`` and ``list[JobContext]``.

    Raises:
        ConfigurationError: It is not a function, a parameter has no source, or two parameters are payloads.
    """
    if not callable(function):
        raise ConfigurationError(f"the {what} must be a function")
    reject_generator_function(f"the {what}", function)
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"the {what} has an annotation that cannot be resolved: {error}. Import the type at the top of its module, "
            "not only under TYPE_CHECKING"
        ) from error
    parameters = tuple(
        _read(parameter, hints, provided=provided, special=special, what=what, lists=lists)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is inspect.Parameter.empty or parameter.name in hints
    )
    payloads = [parameter for parameter in parameters if parameter.source is Source.PAYLOAD]
    sessions = [parameter for parameter in parameters if parameter.source is Source.SESSION]
    for those, kind in ((payloads, "payload"), (sessions, "session")):
        if len(those) > 1:
            names = " and ".join(repr(parameter.name) for parameter in those)
            raise ConfigurationError(f"the {what} asks for its {kind} twice, as {names}: keep one of them")
    is_async = is_coroutine_function(function)
    session = session_kind(sessions[0].annotation) if sessions else None
    if session is not None and session.is_async != is_async:
        raise ConfigurationError(_wrong_colour(what, sessions[0].name, session, is_async=is_async))
    return Signature(
        parameters=parameters,
        is_async=is_async,
        payload=payloads[0].annotation if payloads else None,
        session=session,
        resources=tuple(parameter.annotation for parameter in parameters if parameter.source is Source.RESOURCE),
    )


def _read(
    parameter: inspect.Parameter,
    hints: Mapping[str, Any],
    *,
    provided: Callable[[Any], bool],
    special: Mapping[Any, Source],
    what: str,
    lists: bool,
) -> Parameter:
    name = parameter.name
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        raise ConfigurationError(f"the {what} takes *{name}: name each parameter, so that its source is known")
    if name not in hints:
        raise ConfigurationError(
            f"parameter {name!r} of the {what} has no annotation: its value is chosen by its type. Annotate it with a "
            "payload model, a session, JobContext, Emit or a type given to app.provide()"
        )
    annotation = hints[name]
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if provided(annotation):  # checked first, because a declared resource may be a dataclass
        return Parameter(name, Source.RESOURCE, annotation)
    of_many = _read_list(name, annotation, special=special, what=what, lists=lists)
    if of_many is not None:
        return of_many
    if annotation in special:
        return Parameter(name, special[annotation], annotation)
    if annotation is logging.Logger or annotation is logging.LoggerAdapter:
        return Parameter(name, Source.LOGGER, annotation)
    if session_kind(annotation) is not None:
        return Parameter(name, Source.SESSION, annotation)
    if is_model(annotation):
        return Parameter(name, Source.PAYLOAD, annotation)
    shown = type_name(annotation)
    raise ConfigurationError(
        f"parameter {name!r} of the {what} has no source: {shown} is neither a payload model nor a session. "
        f"Declare it with app.provide({shown}, factory), or make it a field of the payload model"
    )


def _read_list(
    name: str, annotation: Any, *, special: Mapping[Any, Source], what: str, lists: bool
) -> Parameter | None:
    """Return the parameter of a batch handler that gets a list; None if its value is the same for all messages."""

    def is_of_one_message(kind: Any) -> bool:
        return special.get(kind) is Source.CONTEXT or is_model(kind)

    arguments = get_args(annotation)
    is_list = get_origin(annotation) in {list, Sequence} and len(arguments) == 1
    if is_list and is_of_one_message(arguments[0]):
        if lists:
            return Parameter(name, special.get(arguments[0], Source.PAYLOAD), arguments[0])
        raise ConfigurationError(
            f"parameter {name!r} of the {what} is a list, and the function is called for one message: ask for "
            f"{type_name(arguments[0])}, or make it a batch handler with batch=200"
        )
    if lists and is_of_one_message(annotation):
        raise ConfigurationError(
            f"parameter {name!r} of the {what} is a {type_name(annotation)}, and a batch handler gets those of all its "
            f"messages: ask for list[{type_name(annotation)}]"
        )
    return None


def _wrong_colour(what: str, name: str, session: SessionKind, *, is_async: bool) -> str:
    if is_async:
        return (
            f"parameter {name!r} of the {what} is a {session.value}, which blocks the event loop in an async def: "
            "ask for AsyncSession or AsyncConnection, or make it a plain function, which runs in a thread"
        )
    return (
        f"parameter {name!r} of the {what} is a {session.value}, which a plain function cannot await: "
        "make it an async def, or ask for Session, Connection or DbSession"
    )
