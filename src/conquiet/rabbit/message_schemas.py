"""Register the accepted schemas, and validate messages by them. Pure.

``proca:action:2`` and ``proca:event:2`` are built in. Others are registered with a function, a pydantic model or a
msgspec struct. The syncer receives the result of the validation.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NewType, Self, get_origin

import msgspec

from conquiet.core.functions import is_coroutine_function
from conquiet.core.validation import require_text
from conquiet.errors import ConfigurationError
from conquiet.rabbit.decode import Unreadable
from conquiet.rabbit.proca import messages, normalize

Validate = Callable[[dict[str, Any]], Any]

_UNKNOWN: Final = Unreadable("unknown schema")
_INVALID: Final = Unreadable("message does not fit its schema")


@dataclass(frozen=True, slots=True)
class Schema:
    """One accepted kind of message.

    Attributes:
        name: Value of the message's field ``schema``.
        validate: Returns the object for the syncer; raises for a message that does not fit. None accepts all.
        decrypts: Decrypt ``personalInfo`` if a key store is configured.
    """

    name: str
    validate: Validate | None = None
    decrypts: bool = False


_BUILT_IN: Final = (
    Schema(messages.ACTION_V2, normalize.normalize_action, decrypts=True),
    Schema(messages.EVENT_V2, normalize.normalize_event),
)


class SchemaRegistry:
    """The schemas that one consumer accepts.

    Args:
        built_in: Include the two schemas of the original. False starts empty.
    """

    __slots__ = ("_default", "_schemas")

    def __init__(self, *, built_in: bool = True) -> None:
        self._schemas: dict[str, Schema] = {schema.name: schema for schema in _BUILT_IN} if built_in else {}
        self._default: Schema | None = None

    def register(self, name: str, model: Any = None) -> Self:
        """Accept messages with ``name`` in their field ``schema``.

        Args:
            name: The schema's name.
            model: A pydantic model, a msgspec struct (or any type msgspec can convert to), or a function that takes
                the decoded object and returns the object for the syncer. Any exception from it refuses the message.
                None accepts every object with this name.

        Raises:
            ConfigurationError: The name is already registered, or ``model`` has another type.
        """
        require_text("schema name", name)
        if name in self._schemas:
            raise ConfigurationError(f"schema {name} is registered already")
        self._schemas[name] = Schema(name, _validator(model))
        return self

    def register_default(self, model: Any = None) -> Self:
        """Accept messages without a field ``schema``. ``model`` validates them as in :meth:`register`."""
        if self._default is not None:
            raise ConfigurationError("a schema for messages without a name is registered already")
        self._default = Schema("", _validator(model))
        return self

    def find(self, message: Mapping[str, Any]) -> Schema | Unreadable:
        """Return the schema that the message names, or ``Unreadable`` if it is not registered."""
        name = message.get("schema")
        if name is None:
            return self._default or _UNKNOWN
        # Look up strings only: a list as a name is not hashable.
        found = self._schemas.get(name) if isinstance(name, str) else None
        return found or _UNKNOWN

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def __iter__(self) -> Iterator[str]:
        return iter(self._schemas)

    def __len__(self) -> int:
        return len(self._schemas)

    def __repr__(self) -> str:
        return f"SchemaRegistry({', '.join(self._schemas)})"


def apply(schema: Schema, message: dict[str, Any]) -> Any | Unreadable:
    """Validate ``message``, and return the object for the syncer.

    The text of a validation error may quote the message. So it is not passed on; the reason is a constant.
    """
    if schema.validate is None:
        return message
    try:
        return schema.validate(message)
    except Exception:  # noqa: BLE001 - a user's validation may raise any exception: the message does not fit
        return _INVALID


def _validator(model: Any) -> Validate | None:
    if model is None:
        return None
    pydantic_style = getattr(model, "model_validate", None)
    if callable(pydantic_style):
        validate: Validate = pydantic_style
        return validate
    # dict[str, int], Annotated[…] and NewType are callable too, but calling them validates nothing.
    if isinstance(model, type | NewType) or get_origin(model) is not None:
        return lambda message: msgspec.convert(message, model)
    if callable(model):
        function: Validate = model
        if is_coroutine_function(function):
            raise ConfigurationError("a schema is validated by a plain function: a coroutine would not be awaited")
        return function
    raise ConfigurationError("a schema is validated by a pydantic model, a msgspec struct or a function")
