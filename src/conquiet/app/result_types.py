"""The types of results: JSON values of ``emit_and_wait`` become objects of the type that the handler declares."""

from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from conquiet.app.payloads import describe_misfit, is_pydantic
from conquiet.errors import ConfigurationError, JobResultError


class ResultType:
    """Convert the JSON value of a result into an object of a type.

    Args:
        event: The event of the result, for errors.
        kind: The type: a model, or any type of ``msgspec.convert``, such as ``list[Price]``.

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
        except ValueError as error:  # msgspec's error is one
            # What pydantic found is the cause: msgspec adds the path to the field that has the pydantic type.
            inner = error.__cause__
            path, reason = inner.facts if isinstance(inner, _PydanticMisfit) else describe_misfit(error)
        raise JobResultError(
            f"the result of event {self._event!r} does not fit {_name(self._kind)}: field {path}: {reason}",
            event=self._event,
            reason=reason,
            path=path,
        )


def return_type(function: Callable[..., Any]) -> Any:
    """Return a function's return annotation; None for ``Any``, ``object`` and ``None``."""
    try:
        kind = get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):  # names that are imported for type checkers only
        return None
    return None if kind in {Any, object, type(None)} else kind


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
