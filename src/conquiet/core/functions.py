"""Check handlers and their results: kind of function, parameters, forgotten ``await``."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from conquiet.core.log import FactLogger
from conquiet.errors import ConfigurationError

logger = FactLogger(__name__)

_MADE_FOR: Final = "__conquiet_made_for__"
_POOL_CAPACITY: Final = "__conquiet_pool_capacity__"
_CANCELLATION: Final = "__conquiet_cancellation__"


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Return True if a call returns a coroutine: an ``async def``, or an object with an async ``__call__``.

    A plain wrapper (``functools.wraps``) counts as the function it wraps, an ``async def`` wrapper as a coroutine
    function.
    """
    return any(inspect.iscoroutinefunction(layer) for layer in _layers(function))


def is_awaited(function: Callable[..., Any]) -> bool:
    """Return True for ``async def`` itself: a function, a method, a partial, an object with an async ``__call__``.

    Unlike ``is_coroutine_function``, a plain wrapper counts as a plain function, which may be called in a thread.
    """
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method itself
    )


def require_plain_function(name: str, function: Callable[..., Any]) -> None:
    """Raise ``ConfigurationError`` if a call would return a coroutine, which would never run."""
    if not callable(function):
        raise ConfigurationError(f"{name} must be a function")
    if is_coroutine_function(function):
        raise ConfigurationError(f"{name} must be a plain function, not 'async def': it is called in a thread")


def require_arguments(name: str, function: Callable[..., Any], *arguments: str) -> None:
    """Raise ``ConfigurationError`` if it cannot be called with these arguments: every message would fail.

    For a wrapper, the signature of the wrapper is checked, because it may add or remove arguments. A function without
    an inspectable signature passes. A class with callable instances is refused: a call would only create an instance,
    and the message would be acknowledged without being handled.
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
    """Return the signature of this object, not of one it wraps. None if it is unknown."""
    core = function
    while isinstance(core, functools.partial):
        core = core.func
    try:
        if _shows_other_signature(core) or _shows_other_signature(type(core).__call__):
            return None
        return inspect.signature(function, follow_wrapped=False)
    except Exception:  # noqa: BLE001 - since Python 3.14 annotations may be evaluated here
        return None


def _shows_other_signature(function: object) -> bool:
    """Return True if it shows the signature of another object: by ``__signature__``, or as a proxy."""
    return getattr(function, "__signature__", None) is not None or type(function) is not function.__class__


def mark_made_for(function: Callable[..., Any], place: str) -> None:
    """Record on a function the group or queue it was made for. ``functools.wraps`` copies the record."""
    setattr(function, _MADE_FOR, place)


def require_made_for(function: Callable[..., Any], kind: str, place: str) -> None:
    """Raise ``ConfigurationError`` if the function was made for a different group or queue than the engine's.

    Args:
        function: A handler. A handler without a record passes.
        kind: ``group`` or ``queue``.
        place: The group or queue of the engine that runs it.
    """
    made_for = getattr(function, _MADE_FOR, place)
    if made_for != place:
        raise wrong_place(kind, made_for, place)


def mark_pool_capacity(function: Callable[..., Any], capacity: int | None) -> None:
    """Record on a function how many calls can hold a database connection concurrently. None means no limit."""
    setattr(function, _POOL_CAPACITY, capacity)


def mark_cancellation(function: Callable[..., Any], mark: Callable[[Any], Any]) -> None:
    """Record on a handler the function to call instead when its job is cancelled; see ``cancellation_of``."""
    setattr(function, _CANCELLATION, mark)


def cancellation_of(function: Callable[..., Any]) -> Callable[[Any], Any] | None:
    """Return the function that writes "cancelled" to the handler's database. None for a handler without a database.

    It is called with the handler's context and returns False if the effect is already committed. It is ``async def`` if
    the handler is.
    """
    return getattr(function, _CANCELLATION, None)


def warn_if_pool_is_smaller(function: Callable[..., Any], concurrency: int) -> None:
    """Log a warning if the handler's connection pool is smaller than the concurrency."""
    capacity = getattr(function, _POOL_CAPACITY, None)
    if capacity is not None and capacity < concurrency:
        logger.warning(
            "the concurrency is %(concurrency)s, but the handler's database pool has at most %(pool_capacity)s "
            "connections: handlers will wait for a connection. Call create_engine with "
            "pool_size=%(concurrency)s, or lower the concurrency",
            concurrency=concurrency,
            pool_capacity=capacity,
        )


def wrong_place(kind: str, made_for: str, place: str) -> ConfigurationError:
    """Return the error for a handler that was made for a different group or queue than the engine's."""
    return ConfigurationError(
        f"the handler was made for {kind} {made_for!r} and is run by an engine of {kind} {place!r}: its inbox rows "
        f"would mix with those of another service; leave the argument {kind} out, it comes from the engine"
    )


def reject_awaitable(name: str, result: object) -> None:
    """Raise ``ConfigurationError`` if a plain function returned a coroutine or a generator: its work was not done."""
    if result is None:
        return
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()  # prevents Python's warning about a coroutine that was never awaited
        raise ConfigurationError(f"{name} returned a coroutine, so its work was not done; make it a plain function")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise ConfigurationError(f"{name} returned a generator, so its work was not done; make it a plain function")


def reject_unawaited(result: object) -> None:
    """Raise ``ConfigurationError`` if an ``async def`` handler returned an awaitable: an ``await`` is missing."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise ConfigurationError(
            "the handler returned something to be awaited, so its work was not done; await it there"
        )


def reject_generator_function(name: str, function: Callable[..., Any]) -> None:
    """Raise ``ConfigurationError`` for a generator function: a call runs none of its body."""
    if any(inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer) for layer in _layers(function)):
        raise ConfigurationError(f"{name} must not be a generator: remove its yield, or nothing of it is ever run")


def require_handler(name: str, function: Callable[..., Any], *arguments: str) -> bool:
    """Return True for ``async def`` (``is_awaited``), False for a plain function.

    Raises:
        ConfigurationError: It is not a function, it is a generator, or it cannot be called with these arguments.
    """
    if not callable(function):
        raise ConfigurationError(f"{name} must be callable: async def {name}({', '.join(arguments)})")
    reject_generator_function(name, function)
    require_arguments(name, function, *arguments)
    return is_awaited(function)


class _TracedTimeoutError(TimeoutError):
    """A ``TimeoutError`` that keeps its traceback when it is passed from a thread to the event loop."""


_TracedTimeoutError.__name__ = _TracedTimeoutError.__qualname__ = TimeoutError.__name__
_TracedTimeoutError.__module__ = TimeoutError.__module__


def call_in_thread(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a plain function in a thread so that every failure reaches the event loop. Return its result.

    Raises:
        ConfigurationError: It returned a coroutine or a generator, so its work was not done.
        RuntimeError: It raised ``StopIteration``, which a future cannot hold (its waiter would never return), or
            an error that would end the event loop or the waiting coroutine instead of the handler.
        TimeoutError: It raised ``TimeoutError``. asyncio replaces an error of exactly this class by a new one without
            a traceback, so a subclass with the same name is raised.
    """
    try:
        result = function(*arguments)
    except (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        raise RuntimeError(f"{name} raised {type(error).__name__}") from error
    except TimeoutError as error:
        if type(error) is not TimeoutError:
            raise
        raise _TracedTimeoutError(*error.args).with_traceback(error.__traceback__) from error.__cause__
    reject_awaitable(name, result)
    return result


def _layers(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the objects to inspect: the function, the function it wraps, and the ``__call__`` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    return function, inspect.unwrap(function), getattr(function, "__call__", None)  # noqa: B004 - the method itself
