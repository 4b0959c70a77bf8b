"""The methods of a processor that need no running engine: emit, pauses, dead letters, job states."""

from collections.abc import Iterable, Mapping
from typing import Any

from conquiet.core.signatures import takes_keywords_of
from conquiet.core.validation import require_text
from conquiet.processor.dead_letters import DeadLetters
from conquiet.processor.emit_requests import Emitted, NewMessage
from conquiet.processor.emitter import Emitter
from conquiet.processor.jobs import Jobs
from conquiet.processor.pauses import Pauses
from conquiet.processor.results import JobHandle
from conquiet.redis_transport.client import AsyncClient


class OperatorCalls:
    """The methods of ``Processor`` that need no running engine."""

    _client: AsyncClient
    _emitter: Emitter
    _pauses: Pauses
    _streams: tuple[str, ...]

    async def pause(self, stream: str | None = None, *, event: str | None = None) -> bool:
        """Pause a stream (default: the first) or one event of it, on all hosts, until ``resume``."""
        return await self._pauses.pause(self._first_or(stream), event)

    async def resume(self, stream: str | None = None, *, event: str | None = None) -> bool:
        """End a pause."""
        return await self._pauses.resume(self._first_or(stream), event)

    async def paused(self, stream: str | None = None) -> dict[str, int]:
        """Return the pauses (``*`` is the whole stream) and their start times, in milliseconds."""
        return await self._pauses.paused(self._first_or(stream))

    def dead_letters(self, stream: str | None = None) -> DeadLetters:
        """Return the dead letters of a stream."""
        return DeadLetters(self._client, self._first_or(stream))

    def job(self, job_id: str, *, stream: str | None = None) -> JobHandle:
        """Return the handle of a job, to wait for its result or read its progress. Sends nothing."""
        return JobHandle(self._client, self._first_or(stream), require_text("id", job_id))

    @takes_keywords_of(Emitter.emit)
    async def emit(self, event: str, data: Mapping[str, Any] | None = None, **options: Any) -> Emitted:
        """Emit one message. Options as for ``Emitter.emit``: id, key, delay_s, at, stream, max_attempts, debounce."""
        return await self._emitter.emit(event, data, **options)

    async def emit_many(self, messages: Iterable[NewMessage], *, stream: str | None = None) -> list[Emitted]:
        """Emit many messages, atomically per chunk; see ``Emitter.emit_many``."""
        return await self._emitter.emit_many(messages, stream=stream)

    async def emit_and_wait(
        self,
        event: str,
        data: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = 30.0,
        keep_result_s: float = 3_600.0,
        id: str | None = None,  # noqa: A002 - the common name
        stream: str | None = None,
        max_attempts: int | None = None,
        key: str | None = None,
    ) -> Any:
        """Emit one message, wait through all its attempts, and return the handler's result. Any worker may handle it.

        If ``id`` was emitted before, the message is not emitted again, and its result is awaited.

        Args:
            event: Selects the handler.
            data: A JSON object for the handler.
            timeout_s: How long to wait. The job continues after that: ``job(id).result()`` waits again.
            keep_result_s: How long the result is kept after the end.
            id: Identity of the message; see ``emit``.
            stream: The stream. Default: the first.
            max_attempts: Total number of attempts, instead of the handler's setting. The worker limits it to that
                setting, or to its ``max_attempts_limit``.
            key: Messages of one key run one at a time and in order, so the wait includes earlier messages of the key.

        Raises:
            JobFailedError: The job is dead.
            JobCancelledError: The job was cancelled.
            JobTimeoutError: The job has not ended in time.
        """
        message = NewMessage(event, data, id, max_attempts=max_attempts, key=key, keep_result_s=keep_result_s)
        return await (await self._emitter.emit_job(message, stream=stream)).result(timeout_s=timeout_s)

    @property
    def jobs(self) -> Jobs:
        """Job states, if ``job_ttl_s`` is set."""
        return Jobs(self._client)

    def _first_or(self, stream: str | None) -> str:
        return self._streams[0] if stream is None else stream
