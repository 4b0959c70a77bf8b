"""Typed payloads and results: from the JSON of a message to the model of its handler, and back. Pure.

Models are msgspec structs, pydantic models, dataclasses, typed dicts and plain ``dict``. Errors name the field that
does not fit and never its value: a payload may hold personal data.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, get_origin, get_type_hints, is_typeddict

import msgspec

from conquiet.errors import ConfigurationError, JobResultError, PayloadError

_REASON: Final = re.compile(
    r"^(Expected `[^`]*`|Object missing required field `[^`]*`|Object contains unknown field|"
    r"Invalid (?:decimal string|enum value|RFC3339 encoded \w+|UUID|base64 encoded string))"
)
_PATH: Final = re.compile(r" - at `([^`]*)`$")


def is_model(annotation: object) -> bool:
    """Return True if a parameter with this annotation gets the payload."""
    if annotation is dict or get_origin(annotation) in {dict, Mapping} or is_typeddict(annotation):
        return True
    return isinstance(annotation, type) and (
        issubclass(annotation, msgspec.Struct) or dataclasses.is_dataclass(annotation) or is_pydantic(annotation)
    )


class PayloadModel:
    """Convert between JSON objects and one model.

    Args:
        event: The event of the payload, for errors.
        model: The annotation.

    Attributes:
        is_plain: True if the payload is passed as the JSON object.

    Raises:
        ConfigurationError: The model cannot be built from a JSON object, or holds a type that JSON cannot carry.
    """

    def __init__(self, event: str, model: Any) -> None:
        self._event = event
        self._model = model
        self.is_plain = model is dict or get_origin(model) in {dict, Mapping}
        self._is_pydantic = isinstance(model, type) and is_pydantic(model)
        if not self.is_plain and not self._is_pydantic:
            try:
                msgspec.json.schema(model)
            except (TypeError, RecursionError) as error:
                raise ConfigurationError(
                    f"the payload model {type_name(model)} of event {event!r} cannot be built from JSON: {error}"
                ) from error

        self.decode = self._decoder()

    def _decoder(self) -> Callable[[Mapping[str, Any]], Any]:
        """Return ``decode``: from a JSON object to the model's object.

        It raises ``PayloadError`` if a field is missing or has another type; the text names it. A closure for each kind
        of model: it is called for each message, and choosing in it would cost as much as a small struct.
        """
        if self.is_plain:
            return _unchanged
        if self._is_pydantic:
            return self._validator()
        convert, model = msgspec.convert, self._model

        def decode(data: Mapping[str, Any]) -> Any:
            try:
                return convert(data, model)
            except (msgspec.ValidationError, ValueError) as error:
                raise self._does_not_fit(*_describe_misfit(error)) from None

        return decode

    def encode(self, value: Any) -> dict[str, Any]:
        """Return the JSON object of a model's object, or of a mapping that fits the model.

        Raises:
            PayloadError: The value is of another type, or a mapping that does not fit.
        """
        if isinstance(value, Mapping):
            self.decode(value)
            return dict(value)
        if self.is_plain or not _is_instance(value, self._model):
            raise PayloadError(
                f"event {self._event!r} carries {type_name(self._model)}, got an object of type "
                f"{type(value).__qualname__}"
            )
        if self._is_pydantic:
            encoded: dict[str, Any] = value.model_dump(mode="json")
            return encoded
        try:
            built = msgspec.to_builtins(value)
        except (TypeError, ValueError) as error:
            raise PayloadError(f"the payload of event {self._event!r} cannot be written as JSON: {error}") from None
        # Types are checked when a struct is decoded, not when it is made: a wrong one is found here, by its producer.
        self.decode(built)
        return dict(built)

    def _validator(self) -> Callable[[Mapping[str, Any]], Any]:
        validate = self._model.model_validate  # a lookup costs as much as validating two fields

        def decode(data: Mapping[str, Any]) -> Any:
            try:
                return validate(data if type(data) is dict else dict(data))
            except ValueError as error:
                raise self._does_not_fit(*_describe_pydantic_misfit(error)) from None

        return decode

    def _does_not_fit(self, path: str, reason: str) -> PayloadError:
        return PayloadError(
            f"the payload of event {self._event!r} does not fit {type_name(self._model)}: field {path}: {reason}",
            reason=reason,
            path=path,
        )


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
                f"a result of event {event!r} cannot be a {type_name(kind)}: it cannot be made from JSON. Give a "
                "msgspec struct, a pydantic model, a dataclass, a typed dict or a built-in type as returns"
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
            path, reason = inner.facts if isinstance(inner, _PydanticMisfit) else _describe_misfit(error)
        raise JobResultError(
            f"the result of event {self._event!r} does not fit {type_name(self._kind)}: field {path}: {reason}",
            event=self._event,
            reason=reason,
            path=path,
        )


def _unchanged(data: Mapping[str, Any]) -> Any:
    return data


def encode_untyped(value: Any) -> dict[str, Any]:
    """Return the JSON object of any model, for an event without a known model."""
    if isinstance(value, Mapping):
        return dict(value)
    if is_pydantic(type(value)):
        encoded: dict[str, Any] = value.model_dump(mode="json")
        return encoded
    try:
        built = msgspec.to_builtins(value)
    except (TypeError, ValueError):
        built = None
    if not isinstance(built, dict):
        raise PayloadError(
            "a payload must be a mapping, a msgspec struct, a pydantic model or a dataclass, got an object of type "
            f"{type(value).__qualname__}"
        )
    return built


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
        facts = _describe_pydantic_misfit(error)
    raise _PydanticMisfit(facts)


class _PydanticMisfit(ValueError):  # noqa: N818 - never leaves this module
    """Path and kind of the first error that pydantic found."""

    def __init__(self, facts: tuple[str, str]) -> None:
        super().__init__("invalid value")
        self.facts = facts


def _describe_misfit(error: Exception) -> tuple[str, str]:
    """Return path and reason without the value: of msgspec's sentence only the known beginnings are kept."""
    text = str(error)
    path = _PATH.search(text)
    reason = _REASON.match(text)
    return (path.group(1) if path else "$", reason.group(1) if reason else "invalid value")


def _describe_pydantic_misfit(error: Any) -> tuple[str, str]:
    """Return path and kind of the first error that pydantic found."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    return "$" + "".join(f".{part}" for part in first["loc"]), str(first["type"])


def is_pydantic(kind: type) -> bool:
    """Return True for a class of pydantic's kind."""
    return callable(getattr(kind, "model_validate", None)) and callable(getattr(kind, "model_dump", None))


def _is_instance(value: Any, model: Any) -> bool:
    return isinstance(model, type) and not is_typeddict(model) and isinstance(value, model)


def type_name(kind: Any) -> str:
    """Return the name of a type, for errors."""
    return getattr(kind, "__qualname__", None) or str(kind)
