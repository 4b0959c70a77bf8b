"""Typed payloads: from the JSON object of a message to the model of its handler, and back. Pure.

Models are msgspec structs, pydantic models, dataclasses, typed dicts and plain ``dict``. Errors name the field that
does not fit and never its value: a payload may hold personal data.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, get_origin, is_typeddict

import msgspec

from conquiet.errors import ConfigurationError, PayloadError

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

    Raises:
        ConfigurationError: The model cannot be built from a JSON object, or holds a type that JSON cannot carry.
    """

    def __init__(self, event: str, model: Any) -> None:
        self._event = event
        self._model = model
        self._is_plain = model is dict or get_origin(model) in {dict, Mapping}
        self._is_pydantic = isinstance(model, type) and is_pydantic(model)
        if not self._is_plain and not self._is_pydantic:
            try:
                msgspec.json.schema(model)
            except (TypeError, RecursionError) as error:
                raise ConfigurationError(
                    f"the payload model {_name(model)} of event {event!r} cannot be built from JSON: {error}"
                ) from error

        self.decode = self._decoder()

    def _decoder(self) -> Callable[[Mapping[str, Any]], Any]:
        """Return ``decode``: from a JSON object to the model's object.

        It raises ``PayloadError`` if a field is missing or has another type; the text names it. A closure for each kind
        of model: it is called for each message, and choosing in it would cost as much as a small struct.
        """
        if self._is_plain:
            return _unchanged
        if self._is_pydantic:
            return self._validator()
        convert, model = msgspec.convert, self._model

        def decode(data: Mapping[str, Any]) -> Any:
            try:
                return convert(data, model)
            except (msgspec.ValidationError, ValueError) as error:
                raise self._does_not_fit(*describe_misfit(error)) from None

        return decode

    @property
    def is_plain(self) -> bool:
        """True if the payload is passed as the JSON object."""
        return self._is_plain

    def encode(self, value: Any) -> dict[str, Any]:
        """Return the JSON object of a model's object, or of a mapping that fits the model.

        Raises:
            PayloadError: The value is of another type, or a mapping that does not fit.
        """
        if isinstance(value, Mapping):
            self.decode(value)
            return dict(value)
        if self._is_plain or not _is_instance(value, self._model):
            raise PayloadError(
                f"event {self._event!r} carries {_name(self._model)}, got an object of type {type(value).__qualname__}"
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
                first = error.errors(include_input=False, include_url=False, include_context=False)[0]  # type: ignore[attr-defined]
                path = "$" + "".join(f".{part}" for part in first["loc"])
                raise self._does_not_fit(path, str(first["type"])) from None

        return decode

    def _does_not_fit(self, path: str, reason: str) -> PayloadError:
        return PayloadError(
            f"the payload of event {self._event!r} does not fit {_name(self._model)}: field {path}: {reason}",
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


def describe_misfit(error: Exception) -> tuple[str, str]:
    """Return path and reason without the value: of msgspec's sentence only the known beginnings are kept."""
    text = str(error)
    path = _PATH.search(text)
    reason = _REASON.match(text)
    return (path.group(1) if path else "$", reason.group(1) if reason else "invalid value")


def is_pydantic(kind: type) -> bool:
    """Return True for a class of pydantic's kind."""
    return callable(getattr(kind, "model_validate", None)) and callable(getattr(kind, "model_dump", None))


def _is_instance(value: Any, model: Any) -> bool:
    return isinstance(model, type) and not is_typeddict(model) and isinstance(value, model)


def _name(model: Any) -> str:
    return getattr(model, "__qualname__", None) or str(model)
