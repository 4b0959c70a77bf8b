"""The emitter for code without asyncio: ``emitter`` on a synchronous client, where no coroutine suspends."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from conquiet.core.closing import ClosedAfterUse
from conquiet.core.signatures import takes_keywords_of
from conquiet.core.threads import run_without_loop
from conquiet.processor.emit_requests import EmitOptions, Emitted, NewMessage, WaitOptions, reject_due_time
from conquiet.processor.emitter import Emitter
from conquiet.processor.jobs import NewState, record_new
from conquiet.processor.keys import Keys
from conquiet.processor.results import SyncJobHandle
from conquiet.processor.settings import ProcessorSettings
from conquiet.redis_transport.client import AnyRedis, SyncClient, clone_sync


class BlockingEmitter(Emitter):
    """An emitter on a synchronous client. Call its coroutines with ``run_without_loop``, in any thread."""

    def __init__(self, client: SyncClient, stream: str, settings: ProcessorSettings | None) -> None:
        super().__init__(client, stream, settings)  # type: ignore[arg-type]  # what it calls takes either kind
        self._sync_client = client
        self._keeps_states = self._settings.job_ttl_s is not None

    async def _record(self, keys: Keys, states: Sequence[NewState]) -> None:
        if self._settings.job_ttl_s is not None:
            record_new(self._sync_client, keys, states, ttl_s=self._settings.job_ttl_s)

    def _check_loop(self) -> None:
        """Do nothing: there is no event loop."""


class SyncEmitter(ClosedAfterUse):
    """Emits to streams of one server from plain functions: web views, scripts, threads.

    One emitter serves any number of threads. After a fork, each process must create a new one.

    Args:
        redis: A ``redis.Redis`` or ``redis.asyncio.Redis``. Separate connections to the same server are opened.
        stream: Default stream.
        settings: The settings of the processor that handles the messages: dedupe window, chunk size, payload limit, and
            ``job_ttl_s`` if job states are kept.
    """

    _kind: type[BlockingEmitter] = BlockingEmitter
    _emitter: Emitter

    def __init__(self, redis: AnyRedis, stream: str, settings: ProcessorSettings | None = None) -> None:
        self._client = clone_sync(redis)
        self._emitter = self._kind(self._client, stream, settings)

    @takes_keywords_of(Emitter.emit)
    def emit(self, event: str, data: Mapping[str, Any] | None = None, **options: Unpack[EmitOptions]) -> Emitted:
        """Emit one message; see ``Emitter.emit`` for the arguments and errors."""
        return run_without_loop(self._emitter.emit(event, data, **options))

    def emit_many(
        self, messages: Iterable[NewMessage], *, stream: str | None = None, replicas: int | None = None
    ) -> list[Emitted]:
        """Emit many messages, atomically per chunk; see ``Emitter.emit_many``."""
        return run_without_loop(self._emitter.emit_many(messages, stream=stream, replicas=replicas))

    @takes_keywords_of(Emitter.emit_and_wait)
    def emit_and_wait(self, event: str, data: Mapping[str, Any] | None = None, **options: Unpack[WaitOptions]) -> Any:
        """Emit one message, wait, and return the handler's result; see ``Emitter.emit_and_wait``.

        The wait blocks the calling thread and holds one connection.
        """
        reject_due_time(options)
        return run_without_loop(self._emitter.emit_and_wait(event, data, **options))

    def emit_job(self, message: NewMessage, *, stream: str | None = None) -> SyncJobHandle:
        """Emit one message, and return its job, to wait for."""
        job = run_without_loop(self._emitter.emit_job(message, stream=stream))
        return SyncJobHandle(self._client, job.stream, job.id)

    def job(self, job_id: str, *, stream: str | None = None) -> SyncJobHandle:
        """Return the handle of a job, to wait for its result or read its progress. Sends nothing."""
        job = self._emitter.job(job_id, stream=stream)
        return SyncJobHandle(self._client, job.stream, job.id)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
