"""Resources that handlers get by type: made by factories, once per process or once per message.

A factory is a plain function, an ``async def``, or a generator of either kind: the code after its ``yield`` is the
clean-up. Its annotated parameters get other resources. Clean-up runs in reverse order, at the end of the message or of
the process; with an error of the handler it is thrown into the generator, as ``contextlib`` does.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from conquiet.app.payloads import type_name
from conquiet.errors import ConfigurationError

Scope = Literal["message", "process"]

Factory = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Provider:
    """The factory of one type.

    Attributes:
        kind: The type.
        factory: Makes an object of it.
        scope: The lifetime of the object.
        needs: Types of the factory's parameters, by name.
    """

    kind: Any
    factory: Factory
    scope: Scope
    needs: Mapping[str, Any]


class Resources:
    """Keep the declared resources of an application, and the objects with the scope ``"process"``."""

    def __init__(self) -> None:
        self._providers: dict[Any, Provider] = {}
        self._overrides: dict[Any, Any] = {}
        self._kept: dict[Any, Any] = {}
        self._stack = AsyncExitStack()
        self._making = asyncio.Lock()

    def __contains__(self, kind: object) -> bool:
        try:
            return kind in self._providers
        except TypeError:  # an annotation that cannot be hashed names no resource
            return False

    def provide(self, kind: Any, factory: Factory, *, scope: Scope) -> None:
        """Declare the factory of a type.

        Raises:
            ConfigurationError: The type has a factory already, or a parameter of the factory has no declared type.
        """
        if kind in self._providers:
            raise ConfigurationError(
                f"{type_name(kind)} is provided already: a type has one factory. Use app.override()"
            )
        if not callable(factory):
            raise ConfigurationError(
                f"the factory of {type_name(kind)} must be callable; for a value give lambda: value"
            )
        if scope not in {"message", "process"}:
            raise ConfigurationError(f"the scope of {type_name(kind)} must be 'message' or 'process', got {scope!r}")
        needs = self._needs(kind, factory, scope)
        self._providers[kind] = Provider(kind, factory, scope, needs)

    @contextmanager
    def override(self, kind: Any, value: Any) -> Iterator[None]:
        """Use ``value`` for a type while the block runs: for tests."""
        if kind not in self._providers:
            raise ConfigurationError(f"{type_name(kind)} is not provided, so there is nothing to override")
        before = dict(self._overrides)
        self._overrides[kind] = value
        try:
            yield
        finally:
            self._overrides = before

    @asynccontextmanager
    async def open(self, kinds: tuple[Any, ...]) -> AsyncIterator[dict[Any, Any]]:
        """Make the resources of a message, one object per type, and clean them up afterwards."""
        made: dict[Any, Any] = {}
        async with AsyncExitStack() as stack:
            for kind in kinds:
                await self._get(kind, made, stack)
            yield made

    async def close(self) -> None:
        """Clean up the resources of the process. A later use makes them again."""
        self._kept.clear()
        await self._stack.aclose()

    def _needs(self, kind: Any, factory: Factory, scope: Scope) -> dict[str, Any]:
        try:
            parameters = inspect.signature(factory).parameters.values()
            hints = get_type_hints(factory) if inspect.isroutine(factory) else {}
        except (ValueError, NameError) as error:
            raise ConfigurationError(f"the factory of {type_name(kind)} has a signature that cannot be read") from error
        needs: dict[str, Any] = {}
        for parameter in parameters:
            if parameter.default is not parameter.empty or parameter.kind in {
                parameter.VAR_KEYWORD,
                parameter.VAR_POSITIONAL,
            }:
                continue
            wanted = hints.get(parameter.name)
            if wanted not in self:
                raise ConfigurationError(
                    f"the factory of {type_name(kind)} asks for {parameter.name!r}, which is not provided: "
                    "declare its type with app.provide() first"
                )
            if scope == "process" and self._providers[wanted].scope == "message":
                raise ConfigurationError(
                    f"{type_name(kind)} lives as long as the process and cannot hold {type_name(wanted)}, which is "
                    "made for each message"
                )
            needs[parameter.name] = wanted
        return needs

    async def _get(self, kind: Any, made: dict[Any, Any], stack: AsyncExitStack) -> Any:
        if kind in self._overrides:
            made[kind] = self._overrides[kind]
        if kind in made:
            return made[kind]
        provider = self._providers[kind]
        if provider.scope == "process":
            if kind not in self._kept:
                async with self._making:  # concurrent messages must not make it twice
                    await self._keep(provider)
            made[kind] = self._kept[kind]
        else:
            made[kind] = await self._make(provider, made, stack)
        return made[kind]

    async def _keep(self, provider: Provider) -> None:
        """Make a resource of the process, and first its own needs. The caller holds the lock."""
        if provider.kind in self._kept:
            return
        for kind in provider.needs.values():
            if kind not in self._overrides:
                await self._keep(self._providers[kind])
        self._kept[provider.kind] = await self._make(provider, dict(self._kept), self._stack)

    async def _make(self, provider: Provider, made: dict[Any, Any], stack: AsyncExitStack) -> Any:
        arguments = {name: await self._get(kind, made, stack) for name, kind in provider.needs.items()}
        factory = provider.factory
        if inspect.isasyncgenfunction(factory):
            return await stack.enter_async_context(asynccontextmanager(factory)(**arguments))
        if inspect.isgeneratorfunction(factory):
            return stack.enter_context(contextmanager(factory)(**arguments))
        value = factory(**arguments)
        return await value if inspect.isawaitable(value) else value
