"""The base class of ``Processor`` and ``PartitionedProcessor``: arguments, run and close."""

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from conquiet.core.background import BackgroundWorker
from conquiet.core.identity import stable_consumer_id
from conquiet.core.lifecycle import AsyncLifecycle
from conquiet.core.task_cancellation import wait_shielded
from conquiet.core.validation import require_positive, require_text
from conquiet.processor.jobs import JobRecorder
from conquiet.processor.operator_calls import EmitCalls
from conquiet.processor.settings import ProcessorSettings
from conquiet.redis_transport.client import AnyRedis, clone_async
from conquiet.redis_transport.errors import RedisError

T = TypeVar("T")


class ProcessorBase(EmitCalls, BackgroundWorker):
    """A worker that emits, too. Emitter and worker share one client. See ``Processor`` for the arguments."""

    _closes_at_end = False

    def __init__(
        self,
        redis: AnyRedis,
        *,
        concurrency: int,
        group: str,
        consumer_id: str | None,
        settings: ProcessorSettings | None,
    ) -> None:
        self._concurrency = require_positive("concurrency", concurrency)
        self._group = require_text("group", group)
        self._consumer_id = stable_consumer_id() if consumer_id is None else require_text("consumer_id", consumer_id)
        self._settings = ProcessorSettings() if settings is None else settings
        self._redis, self._client = redis, clone_async(redis)
        ttl_s = self._settings.job_ttl_s
        self._recorder = None if ttl_s is None else JobRecorder(self._client, ttl_s=ttl_s)
        self._lifecycle = AsyncLifecycle(f"this {type(self).__name__}")

    @property
    def consumer_id(self) -> str:
        """Name of this consumer in the group."""
        return self._consumer_id

    name = consumer_id

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
