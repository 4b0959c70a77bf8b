"""Register commands, which end with one sentence instead of a traceback and may take options as one object."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_origin

import typer

from conquiet.cli.errors import exit_on_error

F = TypeVar("F", bound=Callable[..., Any])


class CommandGroup(typer.Typer):
    """A group of commands.

    A parameter of a command may be a dataclass: each field that is ``Annotated`` with an option is then an option of
    the command, in the place of the parameter.
    """

    def command(self, *args: Any, **kwargs: Any) -> Callable[[F], F]:
        """Register a function as a command; see ``typer.Typer.command`` for the arguments."""
        register = super().command(*args, **kwargs)

        def add(function: F) -> F:
            register(exit_on_error()(_with_single_options(function)))
            return function

        return add


def _with_single_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with one parameter for each option of its dataclasses."""
    objects: dict[str, tuple[Any, list[str]]] = {}
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if not is_dataclass(parameter.annotation):
            options.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        found = [
            parameter.replace(name=field.name, default=field.default, annotation=field.type)
            for field in fields(parameter.annotation)
            if get_origin(field.type) is Annotated
        ]
        options += found
        objects[parameter.name] = (parameter.annotation, [option.name for option in found])

    @functools.wraps(function)
    def run(**given: Any) -> Any:
        for name, (kind, names) in objects.items():
            given[name] = kind(**{option: given.pop(option) for option in names})
        return function(**given)

    # typer reads the signature for the order and the defaults, and the annotations for the types.
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    del run.__wrapped__  # it has other parameters
    return run
