"""One face for everything a worker can run: run, stop, ready."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from conquiet.bridge import OutboxRelay
    from conquiet.processor import Processor
    from conquiet.rabbit import ConnectionEvent, RabbitConsumer
    from conquiet.runtime import Consumer
    from conquiet.scheduler import Scheduler

_PATIENCE_S = 10.0


class Runnable(Protocol):
    """What a worker process runs.

    ``run`` works until ``stop`` was called and everything in hand is settled, or raises. ``stop`` only
    assigns and may be called from a signal handler. ``ready`` is true only while it really does its work:
    it is asked from the event loop and must not wait.
    """

    name: str

    async def run(self) -> None:
        """Work until stopped."""
        ...

    def stop(self) -> None:
        """Ask for the end."""
        ...

    def ready(self) -> bool:
        """Tell whether it does its work now."""
        ...


class Engine:
    """A ``runtime.Consumer``: it knows its health itself."""

    _engine: "Consumer | Processor"

    def __init__(self, engine: "Consumer | Processor") -> None:
        self.name = type(engine).__name__
        self._engine = engine

    async def run(self) -> None:
        """Consume until stopped."""
        await self._engine.start()

    def stop(self) -> None:
        """Ask for the end."""
        self._engine.stop()

    def ready(self) -> bool:
        """True while it reads, or is fully busy."""
        return bool(self._engine.health().ready)


class Processing(Engine):
    """A ``Processor``: an engine that has connections of its own beside it, and no health before its start."""

    _engine: "Processor"

    async def run(self) -> None:
        """Process until stopped."""
        try:
            await super().run()
        finally:
            await self._engine.close()

    def ready(self) -> bool:
        """True while its engine reads, or is fully busy."""
        from conquiet.errors import LifecycleError

        try:
            return super().ready()
        except LifecycleError:
            return False


class Beating(ABC):
    """Something that works in rounds: it is ready while rounds succeed."""

    def __init__(self, worker: Any, round_name: str, *, pause_s: float = 0.0) -> None:
        self.name = type(worker).__name__
        self._worker = worker
        self._patience_s = _PATIENCE_S + pause_s
        self._last_s = float("-inf")
        self._round = getattr(worker, round_name)
        setattr(worker, round_name, self._watched(self._round))

    def stop(self) -> None:
        """Ask for the end."""
        self._worker.stop()

    def ready(self) -> bool:
        """True if a round has succeeded lately."""
        return time.monotonic() - self._last_s < self._patience_s

    @abstractmethod
    def _watched(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same step with a beat after each success."""

    def _beat(self) -> None:
        self._last_s = time.monotonic()


class Ticking(Beating):
    """A ``Scheduler``."""

    _worker: "Scheduler"

    def __init__(self, scheduler: "Scheduler") -> None:
        super().__init__(scheduler, "tick")

    async def run(self) -> None:
        """Fire until stopped."""
        try:
            await self._worker.start()
        finally:
            await self._worker.close()

    def _watched(self, step: Callable[..., Any]) -> Callable[..., Any]:
        async def tick() -> Any:
            result = await step()
            self._beat()
            return result

        return tick


class Relaying(Beating):
    """An ``OutboxRelay``, which blocks and therefore has a thread of its own."""

    _worker: "OutboxRelay"

    def __init__(self, relay: "OutboxRelay") -> None:
        super().__init__(relay, "relay_once", pause_s=relay.poll_s)

    def ready(self) -> bool:
        """True if a round has succeeded lately and every target could be reached."""
        return super().ready() and self._worker.reaches_all_targets

    async def run(self) -> None:
        """Publish until stopped."""
        try:
            await asyncio.to_thread(self._worker.run)
        finally:
            self._worker.close()

    def _watched(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def relay_once() -> Any:
            result = step()
            self._beat()
            return result

        return relay_once


class Rabbit:
    """A ``RabbitConsumer``: ready while the broker sends."""

    def __init__(self, consumer: "RabbitConsumer") -> None:
        self.name = type(consumer).__name__
        self._consumer = consumer
        self._connected = False
        consumer.listen(self._hear)

    async def run(self) -> None:
        """Consume until stopped."""
        await self._consumer.run()

    def stop(self) -> None:
        """Ask for the end."""
        self._consumer.stop()

    def ready(self) -> bool:
        """True while it is connected and running."""
        from conquiet.kernel.lifecycle import Status

        return self._connected and self._consumer.status is Status.RUNNING

    def _hear(self, event: "ConnectionEvent") -> None:
        from conquiet.rabbit import EventKind

        if event.kind is EventKind.CONNECTED:
            self._connected = True
        elif event.kind is EventKind.LOST:
            self._connected = False


# By home and name, so that a room whose extra is not installed is never imported for the question.
_ADAPTERS: dict[tuple[str, str], Callable[[Any], Runnable]] = {
    ("conquiet.runtime", "Consumer"): Engine,
    ("conquiet.processor", "Processor"): Processing,
    ("conquiet.scheduler", "Scheduler"): Ticking,
    ("conquiet.rabbit", "RabbitConsumer"): Rabbit,
    ("conquiet.bridge", "OutboxRelay"): Relaying,
}


def adapt(worker: object) -> Runnable | None:
    """Return the face of ``worker``; None if it is nothing that a worker can run."""
    for kind in type(worker).__mro__:
        for (room, name), adapter in _ADAPTERS.items():
            if kind.__name__ == name and kind.__module__.startswith(room):
                return adapter(worker)
    return None
