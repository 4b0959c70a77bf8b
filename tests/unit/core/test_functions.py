"""The kind of a function is recognised through any wrapper."""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from conquiet.core.functions import (
    call_in_thread,
    is_coroutine_function,
    reject_generator_function,
    require_arguments,
    require_handler,
    require_plain_function,
)
from conquiet.errors import ConfigurationError


def plain(_: object) -> bool:
    return True


@functools.wraps(plain)
async def coroutine_around_plain(_: object) -> bool:
    return True


async def coroutine(_: object) -> bool:
    return True


class AsyncObject:
    async def __call__(self, _: object) -> bool:
        return True


class PlainObject:
    def __call__(self, _: object) -> bool:
        return True


@functools.wraps(coroutine)
def plain_around_coroutine(message: object) -> Any:
    return coroutine(message)


@functools.wraps(plain)
def generator_around_plain(_: object) -> Iterator[bool]:
    yield True


class GeneratorObject:
    async def __call__(self, _: object) -> AsyncIterator[bool]:
        yield True


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (coroutine, True),
        (functools.partial(coroutine), True),
        (coroutine_around_plain, True),
        (plain_around_coroutine, True),
        (AsyncObject(), True),
        (AsyncObject().__call__, True),
        (PlainObject(), False),
        (lambda _: True, False),
        (functools.partial(bool), False),
    ],
)
def test_coroutine_functions_are_recognised(function: Callable[..., Any], *, expected: bool) -> None:
    assert is_coroutine_function(function) is expected
    if expected:
        with pytest.raises(ConfigurationError, match="handler must be a plain function, not 'async def'"):
            require_plain_function("handler", function)
    else:
        require_plain_function("handler", function)


@pytest.mark.parametrize(
    ("function", "expected"), [(coroutine, True), (AsyncObject(), True), (plain, False), (PlainObject(), False)]
)
def test_a_handler_may_be_plain_or_async(function: Callable[..., Any], *, expected: bool) -> None:
    assert require_handler("handler", function, "message") is expected


@pytest.mark.parametrize("function", [3, lambda: None, AsyncObject])
def test_an_object_that_is_no_handler_is_refused(function: Any) -> None:
    with pytest.raises(ConfigurationError, match="handler"):
        require_handler("handler", function, "message")


def test_an_object_that_cannot_be_called_is_not_a_function() -> None:
    with pytest.raises(ConfigurationError, match="handler must be a function"):
        require_plain_function("handler", "handle")  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [generator_around_plain, GeneratorObject(), functools.partial(GeneratorObject())])
def test_a_generator_is_one_in_any_wrapping(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="must not be a generator"):
        reject_generator_function("handler", function)


def brings_its_own(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    def wrapper(message: object) -> Any:
        return function(message, "a connection")

    return wrapper


def two(_message: object, _second: object) -> None: ...


def with_a_stated_signature(function: Any) -> Any:
    function.__signature__ = inspect.signature(function)
    return function


class Proxy:
    """Like decorators of wrapt: it has all attributes of the wrapped function and calls it in its own way."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._function)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __call__(self, message: object) -> Any:
        return self._function(message, "a connection")


class ProxiedCall:
    __call__: Any = Proxy(two)


class Effect:
    """A class that does its work as it is made."""

    def __init__(self, message: object) -> None: ...


class Unknown:
    @property
    def __signature__(self) -> Any:
        raise NameError("RuntimeMessage")  # imported for the type checker only, as of Python 3.14

    def __call__(self, message: object) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        plain,
        coroutine,
        AsyncObject(),
        PlainObject(),
        functools.partial(two, 1),
        brings_its_own(two),
        brings_its_own(with_a_stated_signature(lambda message, second: None)),
        Proxy(two),
        functools.partial(Proxy(two)),
        ProxiedCall(),
        Unknown(),
        Effect,
        print,
    ],
)
def test_a_function_that_can_take_the_arguments_is_accepted(function: Callable[..., Any]) -> None:
    """The signature of the wrapper itself counts, for every kind of wrapper; a C function may have none."""
    require_arguments("handler", function, "message")


class Charge:
    """Its constructor takes as many arguments as a handler."""

    def __init__(self, bank: object) -> None: ...

    def __call__(self, message: object) -> None: ...


class Refund(Charge): ...


@pytest.mark.parametrize("function", [Charge, Refund])
def test_a_class_in_place_of_its_instance_is_refused(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(ConfigurationError, match=f"must be an object of the class {function.__name__}, not the class"):
        require_arguments("handler", function, "message")
    require_arguments("handler", function("bank"), "message")


@pytest.mark.parametrize("function", [two, lambda: None, functools.partial(plain, 1)])
def test_a_function_with_wrong_parameters_is_refused_before_it_costs_a_message(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"handler is called as handler\(message\) and cannot take that"):
        require_arguments("handler", function, "message")


async def test_a_timeout_of_a_plain_function_keeps_the_place_it_came_from() -> None:
    """Asyncio replaces a ``TimeoutError`` of a thread by one without a traceback: the log would name no line."""

    def ask() -> None:
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError, match="no answer") as raised:
        await asyncio.get_running_loop().run_in_executor(None, call_in_thread, "the handler", ask)

    assert raised.traceback[-1].name == "ask"
    assert f"{type(raised.value).__module__}.{type(raised.value).__qualname__}" == "builtins.TimeoutError"
