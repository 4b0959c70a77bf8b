"""The methods of a processor that need no running engine: emit, pauses, dead letters, job states."""

from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from conquiet.core.signatures import takes_keywords_of
from conquiet.processor.dead_letters import DeadLetters
from conquiet.processor.emit_requests import EmitOptions, Emitted, NewMessage, WaitOptions, reject_due_time
from conquiet.processor.emitter import Emitter
from conquiet.processor.jobs import Jobs
from conquiet.processor.pauses import Pauses
from conquiet.processor.results import JobHandle
from conquiet.redis_transport.client import AsyncClient


class EmitCalls:
    """The methods of a processor, partitioned or not, that emit messages."""

    _emitter: Emitter

    @takes_keywords_of(Emitter.emit)
    async def emit(self, event: str, data: Mapping[str, Any] | None = None, **options: Unpack[EmitOptions]) -> Emitted:
        """Emit one message. Options as for ``Emitter.emit``: id, key, delay_s, at, stream, max_attempts, debounce."""
        return await self._emitter.emit(event, data, **options)

    async def emit_many(
        self, messages: Iterable[NewMessage], *, stream: str | None = None, replicas: int | None = None
    ) -> list[Emitted]:
        """Emit many messages, atomically per chunk; see ``Emitter.emit_many``."""
        return await self._emitter.emit_many(messages, stream=stream, replicas=replicas)

    @takes_keywords_of(Emitter.emit_and_wait)
    async def emit_and_wait(
        self, event: str, data: Mapping[str, Any] | None = None, **options: Unpack[WaitOptions]
    ) -> Any:
        """Emit one message, wait through all its attempts, and return the handler's result. Any worker may handle it.

        Options and errors as for ``Emitter.emit_and_wait``.
        """
        reject_due_time(options)
        return await self._emitter.emit_and_wait(event, data, **options)

    def job(self, job_id: str, *, stream: str | None = None) -> JobHandle:
        """Return the handle of a job, to wait for its result or read its progress. Sends nothing."""
        return self._emitter.job(job_id, stream=stream)


class OperatorCalls(EmitCalls):
    """The methods of ``Processor`` that need no running engine."""

    _client: AsyncClient
    _pauses: Pauses
    _streams: tuple[str, ...]

    async def pause(self, stream: str | None = None, *, event: str | None = None) -> bool:
        """Pause a stream (default: the first) or one event of it, on all hosts, until ``resume``."""
        return await self._pauses.pause(self._first_or(stream), event=event)

    async def resume(self, stream: str | None = None, *, event: str | None = None) -> bool:
        """End a pause."""
        return await self._pauses.resume(self._first_or(stream), event=event)

    async def paused(self, stream: str | None = None) -> dict[str, int]:
        """Return the pauses (``*`` is the whole stream) and their start times, in milliseconds."""
        return await self._pauses.paused(self._first_or(stream))

    def dead_letters(self, stream: str | None = None) -> DeadLetters:
        """Return the dead letters of a stream."""
        return DeadLetters(self._client, self._first_or(stream))

    @property
    def jobs(self) -> Jobs:
        """Job states, if ``job_ttl_s`` is set."""
        return Jobs(self._client)

    def _first_or(self, stream: str | None) -> str:
        return self._streams[0] if stream is None else stream
