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
        session_name: Name of that parameter.
        resources: Types of the parameters for resources.
    """

    parameters: tuple[Parameter, ...]
    is_async: bool
    payload: Any = None
    session: SessionKind | None = None
    session_name: str = ""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureReader:
    """Reads the parameters of one function.

    Attributes:
        provided: Returns whether a resource of this type was declared.
        special: Types with a fixed source (``JobContext``, ``Emit``).
        what: Names the function in errors: "handler of 'order.paid'".
        lists: True for a batch handler, with ``list[Model]`` and ``list[JobContext]``.
    """

    provided: Callable[[Any], bool]
    special: Mapping[Any, Source]
    what: str
    lists: bool = False

    def read(self, function: Callable[..., Any]) -> Signature:
        """Return the parameters of a handler or of a schedule's function, with their sources.

        Raises:
            ConfigurationError: It is not a function, a parameter has no source, or two parameters are payloads.
        """
        what = self.what
        if not callable(function):
            raise ConfigurationError(f"the {what} must be a function")
        if isinstance(function, type):
            raise ConfigurationError(
                f"the {what} must be a function, not the class {function.__qualname__}: a call only creates an object"
            )
        reject_generator_function(f"the {what}", function)
        try:
            hints = get_type_hints(function, include_extras=True)
        except (NameError, TypeError) as error:
            if not hasattr(function, "__annotations__"):
                raise ConfigurationError(
                    f"the {what} must be a function, not an object of the class {type(function).__qualname__}: its "
                    "parameters are read from its annotations. Write a function that calls the object"
                ) from error
            raise ConfigurationError(
                f"the {what} has an annotation that cannot be resolved: {error}. Import the type at the top of its "
                "module, not only under TYPE_CHECKING"
            ) from error
        parameters = tuple(
            self._parameter(parameter, hints)
            for parameter in inspect.signature(function).parameters.values()
            if parameter.default is inspect.Parameter.empty or parameter.name in hints
        )
        payload = self._only(parameters, Source.PAYLOAD)
        session_parameter = self._only(parameters, Source.SESSION)
        session = None if session_parameter is None else session_kind(session_parameter.annotation)
        is_async = is_coroutine_function(function)
        if session_parameter is not None and session is not None and session.is_async != is_async:
            raise ConfigurationError(_wrong_session(what, session_parameter.name, session, is_async=is_async))
        return Signature(
            parameters=parameters,
            is_async=is_async,
            payload=None if payload is None else payload.annotation,
            session=session,
            session_name="" if session_parameter is None else session_parameter.name,
            resources=tuple(one.annotation for one in parameters if one.source is Source.RESOURCE),
        )

    def _only(self, parameters: Sequence[Parameter], source: Source) -> Parameter | None:
        found = [parameter for parameter in parameters if parameter.source is source]
        if len(found) > 1:
            names = " and ".join(repr(parameter.name) for parameter in found)
            raise ConfigurationError(f"the {self.what} asks for its {source.value} twice, as {names}: keep one of them")
        return found[0] if found else None

    def _parameter(self, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Parameter:
        name, what = parameter.name, self.what
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise ConfigurationError(f"the {what} takes *{name}: name each parameter, so that its source is known")
        if name not in hints:
            raise ConfigurationError(
                f"parameter {name!r} of the {what} has no annotation: its value is chosen by its type. Annotate it "
                "with a payload model, a session, JobContext, Emit or a type given to app.provide()"
            )
        annotation = hints[name]
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        if self.provided(annotation):  # checked first, because a declared resource may be a dataclass
            return Parameter(name, Source.RESOURCE, annotation)
        of_many = self._list(name, annotation)
        if of_many is not None:
            return of_many
        if annotation in self.special:
            return Parameter(name, self.special[annotation], annotation)
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

    def _list(self, name: str, annotation: Any) -> Parameter | None:
        """Return the parameter of a batch handler that gets a list; None if its value is the same for all messages."""
        arguments = get_args(annotation)
        is_list = get_origin(annotation) in {list, Sequence} and len(arguments) == 1
        if is_list and self._is_of_one_message(arguments[0]):
            if self.lists:
                return Parameter(name, self.special.get(arguments[0], Source.PAYLOAD), arguments[0])
            raise ConfigurationError(
                f"parameter {name!r} of the {self.what} is a list, and the function is called for one message: ask for "
                f"{type_name(arguments[0])}, or make it a batch handler with batch=200"
            )
        if self.lists and self._is_of_one_message(annotation):
            raise ConfigurationError(
                f"parameter {name!r} of the {self.what} is a {type_name(annotation)}, and a batch handler gets those "
                f"of all its messages: ask for list[{type_name(annotation)}]"
            )
        return None

    def _is_of_one_message(self, kind: Any) -> bool:
        return self.special.get(kind) is Source.CONTEXT or is_model(kind)


def _wrong_session(what: str, name: str, session: SessionKind, *, is_async: bool) -> str:
    if is_async:
        return (
            f"parameter {name!r} of the {what} is a {session.value}, which blocks the event loop in an async def: "
            "ask for AsyncSession or AsyncConnection, or make it a plain function, which runs in a thread"
        )
    return (
        f"parameter {name!r} of the {what} is a {session.value}, which a plain function cannot await: "
        "make it an async def, or ask for Session, Connection or DbSession"
    )
