"""Functions of the caller's that run in a thread: what they must not be, and what they must not do there."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from conquiet.errors import ConfigurationError


def makes_coroutine(function: Callable[..., Any]) -> bool:
    """Tell whether calling it only makes a coroutine: ``async def``, or an object whose ``__call__`` is one.

    A plain wrapper (``functools.wraps``) is taken for what it wraps, an ``async def`` one for what it is.
    """
    return any(inspect.iscoroutinefunction(layer) for layer in _layers(function))


def require_plain_function(name: str, function: Callable[..., Any]) -> None:
    """Raise ``ConfigurationError`` if calling it would only make a coroutine, which nobody would ever run."""
    if not callable(function):
        raise ConfigurationError(f"{name} must be a function")
    if makes_coroutine(function):
        raise ConfigurationError(f"{name} must be a plain function, not 'async def': it is called in a thread")


def require_arguments(name: str, function: Callable[..., Any], *arguments: str) -> None:
    """Raise ``ConfigurationError`` if it cannot be called with these arguments: every message would fail of that.

    A wrapper is asked itself and not what it wraps, because it may add or take away. What has no signature of its own
    to be asked for passes. A class whose objects can be called does not: a call would only make one more of them, and
    the message would be done without its work.
    """
    if isinstance(function, type) and any("__call__" in vars(kind) for kind in function.__mro__):
        raise ConfigurationError(f"{name} must be an object of the class {function.__name__}, not the class itself")
    signature = _own_signature(function)
    try:
        if signature is not None:
            signature.bind(*arguments)
    except TypeError:
        raise ConfigurationError(
            f"{name} is called as {name}({', '.join(arguments)}) and cannot take that; correct its parameters"
        ) from None


def _own_signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return what a call of exactly this object can take; None if nobody knows."""
    core = function
    while isinstance(core, functools.partial):
        core = core.func
    try:
        if _speaks_for_another(core) or _speaks_for_another(type(core).__call__):
            return None
        return inspect.signature(function, follow_wrapped=False)
    except Exception:  # noqa: BLE001 - an annotation is code too, and since Python 3.14 it may be run only now
        return None


def _speaks_for_another(function: object) -> bool:
    """Tell whether it shows the signature of something else: by name (functools.wraps copies it), or as a proxy."""
    return getattr(function, "__signature__", None) is not None or type(function) is not function.__class__


def refuse_awaitable(name: str, result: object) -> None:
    """Raise ``ConfigurationError`` if a plain function has answered with a coroutine: its work was not done."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()  # nobody will await it, and Python would warn about that
        raise ConfigurationError(f"{name} returned a coroutine, so its work was not done; make it a plain function")


def refuse_unawaited(result: object) -> None:
    """The same for what an ``async def`` handler has answered with: somebody has forgotten an ``await``."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise ConfigurationError(
            "the handler returned something to be awaited, so its work was not done; await it there"
        )


def refuse_generator_function(name: str, function: Callable[..., Any]) -> None:
    """Raise ``ConfigurationError`` for a function with a ``yield`` in it: calling it runs not one line of it."""
    if any(inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer) for layer in _layers(function)):
        raise ConfigurationError(f"{name} must not be a generator: remove its yield, or nothing of it is ever run")


def call_in_thread(name: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Call a plain function so that its caller on the event loop hears of whatever goes wrong.

    Raises:
        ConfigurationError: It answered with a coroutine or a generator: its work was not done.
        RuntimeError: It raised ``StopIteration``, which a future cannot hold (who waits for it would wait for ever), or
            what would end the event loop, or the coroutine that waits for it, in place of the handler.
    """
    try:
        result = function(*arguments)
    except (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        raise RuntimeError(f"{name} raised {type(error).__name__}") from error
    if result is not None:
        refuse_awaitable(name, result)
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise ConfigurationError(f"{name} returned a generator, so its work was not done; make it a plain function")


def _layers(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return where its kind shows: the function itself, what it wraps, and the method that a call of an object runs."""
    while isinstance(function, functools.partial):
        function = function.func
    return function, inspect.unwrap(function), getattr(function, "__call__", None)  # noqa: B004 - the method itself
