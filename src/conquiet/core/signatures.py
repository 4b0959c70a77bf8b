"""Show the real parameters of a function that takes ``**options``.

``help()``, editors that use ``inspect``, and docs/api.md then list every parameter with its default. Calls are not
changed: the receiver of the options still checks them.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def takes_fields_of(settings: type, **defaults: object) -> Callable[[F], F]:
    """Decorate a function that takes the fields of a dataclass as ``**options``.

    Args:
        settings: The dataclass. Fields that are already parameters of the function are left out.
        defaults: Defaults of this function that differ from the dataclass.
    """
    fields = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(field.name, _default_of(field)),
            annotation=field.type,
        )
        for field in dataclasses.fields(settings)
    ]
    return lambda function: _show(function, fields)


def takes_keywords_of(source: Callable[..., Any]) -> Callable[[F], F]:
    """Decorate a function that passes its ``**options`` on to ``source`` as keywords."""
    parameters = inspect.signature(source).parameters.values()
    keywords = [each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
    return lambda function: _show(function, keywords)


def _show(function: F, options: Iterable[inspect.Parameter]) -> F:
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    taken = {each.name for each in own}
    shown = [*own, *(each for each in options if each.name not in taken)]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def _default_of(field: "dataclasses.Field[Any]") -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    return inspect.Parameter.empty if field.default_factory is dataclasses.MISSING else field.default_factory()
