"""``App.emit_and_wait``: emit a message and return what its handler returns, as the type that the handler declares.

    emit_and_wait ──▶ message with keep_result_s ──▶ any worker: the handler returns Price(…)
                                                              │ JSON, kept in Redis
    Price(…) ◀── ResultType ◀── waits for it ◀────────────────┘

The type is the one given as ``returns``, or the return annotation of the handler in this app. Without either the JSON
value is returned.
"""

from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints, overload

import msgspec

from conquiet.app.emission import Emission, EmitOptions
from conquiet.app.payloads import describe_misfit, is_pydantic
from conquiet.app.registry import Registry
from conquiet.core.tracing import Headers
from conquiet.core.validation import require_seconds
from conquiet.errors import ConfigurationError, JobResultError

T = TypeVar("T")


class ResultType:
    """Turns the JSON value of a result into an object of a type.

    Args:
        event: The event whose result it is, for errors.
        kind: The type: a model, or anything that ``msgspec.convert`` can make, such as ``list[Price]``.

    Raises:
        ConfigurationError: The type cannot be made from JSON.
    """

    def __init__(self, event: str, kind: Any) -> None:
        self._event = event
        self._kind = kind
        try:
            msgspec.json.schema(kind, schema_hook=_schema_of_pydantic)
        except (TypeError, NotImplementedError, RecursionError):
            raise ConfigurationError(
                f"a result of event {event!r} cannot be a {_name(kind)}: it cannot be made from JSON. Give a msgspec "
                "struct, a pydantic model, a dataclass, a typed dict or a built-in type as returns"
            ) from None

    def convert(self, value: Any) -> Any:
        """Return the object.

        Raises:
            JobResultError: The value does not fit. The text names the field and never its value.
        """
        try:
            return msgspec.convert(value, self._kind, dec_hook=_validated)
        except ValueError as error:  # msgspec's own is one
            # What pydantic found is the cause: msgspec adds the path to the field that has the pydantic type.
            inner = error.__cause__
            path, reason = inner.facts if isinstance(inner, _PydanticMisfit) else describe_misfit(error)
        raise JobResultError(
            f"the result of event {self._event!r} does not fit {_name(self._kind)}: field {path}: {reason}",
            event=self._event,
            reason=reason,
            path=path,
        )


class EmitAndWait:
    """The part of ``App`` that waits for results."""

    _emission: Emission
    _registry: Registry

    @overload
    async def emit_and_wait(
        self,
        event: str,
        payload: Any = None,
        *,
        returns: type[T],
        timeout_s: float = 30.0,
        keep_result_s: float = 3_600.0,
        id: str | None = None,
        key: str | None = None,
        headers: Headers | None = None,
    ) -> T: ...

    @overload
    async def emit_and_wait(
        self,
        event: str,
        payload: Any = None,
        *,
        returns: None = None,
        timeout_s: float = 30.0,
        keep_result_s: float = 3_600.0,
        id: str | None = None,
        key: str | None = None,
        headers: Headers | None = None,
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
        """Emit a message and return what its handler returns, through all its attempts. Any worker may handle it.

        It is sent at once, and in no transaction: what is not committed cannot be waited for.

        Args:
            event: An event that the app handles or declares.
            payload: An object of the event's model, or a mapping that fits it.
            returns: Type of the result. Left out, it is the return annotation of the handler in this app; without one
                the JSON value is returned.
            timeout_s: How long to wait. The job goes on after that.
            keep_result_s: How long the result is kept after the job's end.
            id: Identity of the message. One that was emitted before is waited for and not emitted again.
            key: Messages of one key run one at a time and in order: those ahead of it are waited for, too.
            headers: Names and texts that travel with the message.

        Raises:
            JobFailedError: The job is dead.
            JobCancelledError: It was cancelled.
            JobTimeoutError: It has not ended in time.
            JobResultError: It has succeeded, and its result does not fit the type.
            PayloadError: The payload does not fit the event's model. Nothing was sent.
            ConfigurationError: The event is unknown, or an argument is wrong. Nothing was sent.
            QueueError: Redis refused, or did not answer.
        """
        convert = self._conversion(event, returns)
        options = EmitOptions(id=id, key=key, headers=headers, keep_result_s=_kept(keep_result_s))
        return convert(await self._emission.emit_and_wait(event, payload, options, _limit(timeout_s)))

    @overload
    def emit_and_wait_sync(
        self,
        event: str,
        payload: Any = None,
        *,
        returns: type[T],
        timeout_s: float = 30.0,
        keep_result_s: float = 3_600.0,
        id: str | None = None,
        key: str | None = None,
        headers: Headers | None = None,
    ) -> T: ...

    @overload
    def emit_and_wait_sync(
        self,
        event: str,
        payload: Any = None,
        *,
        returns: None = None,
        timeout_s: float = 30.0,
        keep_result_s: float = 3_600.0,
        id: str | None = None,
        key: str | None = None,
        headers: Headers | None = None,
    ) -> Any: ...

    def emit_and_wait_sync(
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
        """Do what ``emit_and_wait`` does, from a plain function. The calling thread waits."""
        convert = self._conversion(event, returns)
        options = EmitOptions(id=id, key=key, headers=headers, keep_result_s=_kept(keep_result_s))
        return convert(self._emission.emit_and_wait_sync(event, payload, options, _limit(timeout_s)))

    def _conversion(self, event: str, returns: Any) -> Callable[[Any], Any]:
        if returns is not None:
            return ResultType(event, returns).convert
        handler = self._registry.handlers.get(event)
        kind = None if handler is None else return_type(handler.function)
        if kind is None:
            return _as_it_is
        try:
            return ResultType(event, kind).convert
        except ConfigurationError:  # an annotation for people: nothing was asked for
            return _as_it_is


def return_type(function: Callable[..., Any]) -> Any:
    """Return a function's return annotation; None for one that says nothing about a value."""
    try:
        kind = get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):  # names that exist for type checkers only
        return None
    return None if kind in {Any, object, type(None)} else kind


def _as_it_is(value: Any) -> Any:
    return value


def _kept(keep_result_s: float) -> float:
    return require_seconds("keep_result_s", keep_result_s)


def _limit(timeout_s: float) -> float:
    return require_seconds("timeout_s", timeout_s, zero_allowed=True)


def _schema_of_pydantic(kind: type) -> dict[str, Any]:
    if is_pydantic(kind):
        return {"type": "object"}
    raise NotImplementedError


def _validated(kind: Any, value: Any) -> Any:
    """Build a pydantic object, for msgspec."""
    if not is_pydantic(kind):
        raise NotImplementedError
    try:
        return kind.model_validate(value)
    except ValueError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]  # type: ignore[attr-defined]
        facts = ("$" + "".join(f".{part}" for part in first["loc"]), str(first["type"]))
    raise _PydanticMisfit(facts)


class _PydanticMisfit(ValueError):  # noqa: N818 - never leaves this module
    """Path and kind of the first error that pydantic found."""

    def __init__(self, facts: tuple[str, str]) -> None:
        super().__init__("invalid value")
        self.facts = facts


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)
