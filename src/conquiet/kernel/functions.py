"""Functions of the caller's that must not be coroutines: whoever calls them is not on an event loop."""

import inspect
from collections.abc import Callable
from typing import Any

from conquiet.errors import ConfigurationError


def require_plain_function(name: str, function: Callable[..., Any]) -> None:
    """Raise ``ConfigurationError`` if calling it would only make a coroutine, which nobody would ever run."""
    if not callable(function):
        raise ConfigurationError(f"{name} must be a function")
    if inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
    ):
        raise ConfigurationError(f"{name} must be a plain function, not 'async def': it is called in a thread")


def refuse_awaitable(name: str, result: object) -> None:
    """Raise ``ConfigurationError`` if a plain function has answered with a coroutine: its work was not done."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()  # nobody will await it, and Python would warn about that
        raise ConfigurationError(f"{name} returned a coroutine, so its work was not done; make it a plain function")
