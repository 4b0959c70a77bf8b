"""``async with`` of the asyncio workers: entering runs the worker in the background, leaving closes it."""

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, Self

from conquiet.core.lifecycle import Health, Status
from conquiet.errors import ConfigurationError

_POLL_S: Final = 0.01


class BackgroundWorker(ABC):
    """The base class of asyncio workers. A subclass has ``run()``, ``health()`` and ``close()``."""

    _background: asyncio.Task[Any] | None = None

    @abstractmethod
    def run(self) -> Coroutine[Any, Any, Any]:
        """Work until stopped."""

    @abstractmethod
    def health(self) -> Health:
        """Report whether the worker does its work."""

    @abstractmethod
    async def close(self) -> None:
        """Stop, wait for the end, and release what was opened."""

    def _enter(self) -> tuple[Coroutine[Any, Any, Any], asyncio.Event | None]:
        """Return the coroutine to run, and an event that is set once it works. None waits until ``health().ready``."""
        return self.run(), None

    async def __aenter__(self) -> Self:
        """Start in the background and return once the worker has started."""
        is_new = self.health().status is Status.NEW
        running, ready = self._enter()
        background = asyncio.create_task(running)
        try:
            await wait_ready(background, self._wait_healthy() if ready is None else ready.wait())
        except BaseException:
            if is_new:  # else it runs already, for another caller
                await self.close()
            raise
        self._background = background
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close. Raise the error that ended the worker, if any.

        A cancellation is passed on to the worker and raised once the worker has ended: its handlers must not outlive
        the resources of the surrounding blocks.
        """
        try:
            await self.close()
        except asyncio.CancelledError:
            try:
                if self._background is not None:
                    self._background.cancel()
                    await asyncio.gather(self._background, return_exceptions=True)
            finally:
                await self.close()
            raise
        if self._background is not None:
            await self._background

    async def _wait_healthy(self) -> None:
        while not self.health().ready:  # noqa: ASYNC110 - any part of the worker changes it
            await asyncio.sleep(_POLL_S)


def require_stop_event(event: object) -> None:
    """Raise ``ConfigurationError`` unless ``event`` is None or an event of asyncio: the wait for it would never end."""
    if event is None:
        return
    if isinstance(event, type) or not inspect.iscoroutinefunction(getattr(event, "wait", None)):
        raise ConfigurationError("stop_event must be an asyncio.Event: waiting for another kind blocks the loop")


@asynccontextmanager
async def stop_on(event: asyncio.Event | None, stop: Callable[[], None]) -> AsyncIterator[None]:
    """Call ``stop`` if ``event`` is set before the block ends."""
    if event is None:
        yield
        return

    async def watch() -> None:
        await event.wait()
        stop()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def wait_ready(running: asyncio.Task[Any], ready: Coroutine[Any, Any, object]) -> None:
    """Wait until ``ready`` returns or the background task has ended. Raise the error of the task.

    If the caller is cancelled during the wait, ``__aexit__`` is never called. The task is then cancelled and awaited,
    because no caller could stop it.
    """
    waiting = asyncio.create_task(ready)
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    if running.done():
        running.result()
