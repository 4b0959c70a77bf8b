"""What ``Processor`` and ``PartitionedProcessor`` share: a run that a cancellation stops in order, and the close."""

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from conquiet.core.background import BackgroundWorker
from conquiet.core.lifecycle import AsyncLifecycle
from conquiet.processor.operator_calls import EmitCalls
from conquiet.redis_transport.client import AsyncClient
from conquiet.redis_transport.errors import RedisError
from conquiet.runtime.shutdown import wait_shielded

T = TypeVar("T")


class ClosingWorker(EmitCalls, BackgroundWorker):
    """A worker that emits, too. Its emitter and its own commands share one client."""

    _client: AsyncClient
    _lifecycle: AsyncLifecycle
    _closes_at_end = False

    @abstractmethod
    def end(self) -> None:
        """Stop in order. A later ``stop()`` is the first one, which does not force."""

    @abstractmethod
    def is_own_handler(self) -> bool:
        """Return True if a handler of this worker is the caller."""

    async def close(self) -> None:
        """Stop in order, wait for the end, and close the connections. Called by a handler it only stops.

        A processor that only emits may emit again afterwards, also in another event loop.
        """
        self.end()
        if self.is_own_handler():
            self._closes_at_end = True
            return
        await self._lifecycle.wait_ended()
        await self._release()

    async def _run_shielded(self, living: Coroutine[Any, Any, T], *, force: Callable[[], None]) -> T:
        """Run to the end, in a separate task. A cancellation of the caller stops it, a second one forces the stop."""
        try:
            running = asyncio.create_task(self._then_release(living), name=f"conquiet-{type(self).__name__}")
            return await wait_shielded(running, stop=self.end, force=force)
        finally:
            self._lifecycle.finish()

    async def _then_release(self, living: Coroutine[Any, Any, T]) -> T:
        try:
            return await living
        finally:
            if self._closes_at_end:
                await self._release()

    async def _release(self) -> None:
        with contextlib.suppress(RedisError, OSError, RuntimeError):  # RuntimeError: its event loop is closed
            await self._client.aclose()
        self._emitter.leave_loop()
