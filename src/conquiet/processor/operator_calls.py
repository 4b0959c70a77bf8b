"""What an operator asks a processor for: pauses, dead letters, where jobs stand."""

from collections.abc import Mapping
from typing import Any

from conquiet.core.validation import require_text
from conquiet.processor.dead_letters import DeadLetters
from conquiet.processor.emit_requests import NewMessage
from conquiet.processor.emitter import Emitter
from conquiet.processor.jobs import Jobs
from conquiet.processor.pauses import Pauses
from conquiet.processor.results import JobHandle
from conquiet.redis_transport.client import AsyncClient


class OperatorCalls:
    """The part of ``Processor`` that is for operators."""

    _client: AsyncClient
    _emitter: Emitter
    _pauses: Pauses
    _streams: tuple[str, ...]

    async def pause(self, stream: str | None = None, *, event: str | None = None) -> bool:
        """Pause a stream (the first one if none is named) or one event of it, on all hosts, until ``resume``."""
        return await self._pauses.pause(self._first_or(stream), event)

    async def resume(self, stream: str | None = None, *, event: str | None = None) -> bool:
        """End a pause."""
        return await self._pauses.resume(self._first_or(stream), event)

    async def paused(self, stream: str | None = None) -> dict[str, int]:
        """Return what is paused (``*`` is the whole stream) and since when, in milliseconds."""
        return await self._pauses.paused(self._first_or(stream))

    def dead_letters(self, stream: str | None = None) -> DeadLetters:
        """Return the dead letters of a stream."""
        return DeadLetters(self._client, self._first_or(stream))

    def job(self, job_id: str, *, stream: str | None = None) -> JobHandle:
        """Return a job by its id, to wait for its result or to see its progress. Sends nothing."""
        return JobHandle(self._client, self._first_or(stream), require_text("id", job_id))

    async def emit_and_wait(
        self,
        event: str,
        data: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = 30.0,
        keep_result_s: float = 3_600.0,
        id: str | None = None,  # noqa: A002 - the word for it
        stream: str | None = None,
        max_attempts: int | None = None,
        key: str | None = None,
    ) -> Any:
        """Emit one message and return what its handler returns, through all its attempts. Any worker may handle it.

        An ``id`` that was emitted before is waited for and not emitted again.

        Args:
            event: Picks the handler.
            data: A JSON object, for the handler.
            timeout_s: How long to wait. The job goes on after that: ``job(id).result()`` waits again.
            keep_result_s: How long the result is kept after the end.
            id: Identity of the message; see ``emit``.
            stream: Another stream than the first one.
            max_attempts: Attempts in total, in place of the handler's setting. The worker bounds it by that setting,
                or by its ``max_attempts_limit``.
            key: Messages of one key run one at a time and in order: those ahead of it are waited for, too.

        Raises:
            JobFailedError: The job is dead.
            JobCancelledError: It was cancelled.
            JobTimeoutError: It has not ended in time.
        """
        message = NewMessage(event, data, id, max_attempts=max_attempts, key=key, keep_result_s=keep_result_s)
        emitted = (await self._emitter.emit_many([message], stream=stream))[0]
        return await JobHandle(self._client, emitted.stream, emitted.id).result(timeout_s=timeout_s)

    @property
    def jobs(self) -> Jobs:
        """Where jobs stand, if ``job_ttl_s`` is set."""
        return Jobs(self._client)

    def _first_or(self, stream: str | None) -> str:
        return self._streams[0] if stream is None else stream
