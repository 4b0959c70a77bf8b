"""Emit messages: immediately, delayed, once per id, or only the last of a burst.

Each call is one round trip and is sent once. If its reply is lost, ``QueueError.in_doubt`` is True. A call with an
``id`` may then be repeated: the message is written once. The rules are in ``emit_requests``; ``sync_emitter`` is the
same without asyncio.

See docs/decisions/0011.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from conquiet.core import tracing
from conquiet.core.tracing import Headers
from conquiet.core.validation import require_seconds, require_text
from conquiet.errors import LifecycleError
from conquiet.processor.emit_requests import (
    EmitPlanner,
    Emitted,
    Moment,
    NewMessage,
    checked_messages,
    new_states,
    parse_reply,
    with_headers,
)
from conquiet.processor.jobs import JobRecorder, NewState
from conquiet.processor.keys import Keys
from conquiet.processor.results import JobHandle, Progress, write_progress
from conquiet.processor.settings import ProcessorSettings
from conquiet.redis_transport.client import AsyncClient, require_raw_client
from conquiet.redis_transport.replica_wait import ReplicaWait


class Emitter:
    """Emits to streams of one server.

    Args:
        client: A client without retries and without ``decode_responses``. The caller closes it.
        stream: Default stream.
        settings: Dedupe window, chunk size, payload limit, and whether job states are kept.
        jobs: Writes job states.
    """

    def __init__(
        self,
        client: AsyncClient,
        stream: str,
        settings: ProcessorSettings | None = None,
        *,
        jobs: JobRecorder | None = None,
    ) -> None:
        require_raw_client(client, sends_once=True)
        self._client = client
        self._jobs = jobs
        self._keeps_states = jobs is not None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._settings = ProcessorSettings() if settings is None else settings
        self._plans = EmitPlanner(stream, self._settings)

    async def emit(  # noqa: PLR0913 - options of a message, keyword-only
        self,
        event: str,
        data: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,  # noqa: A002 - the common name
        delay_s: float | None = None,
        at: Moment | None = None,
        stream: str | None = None,
        max_attempts: int | None = None,
        debounce: str | None = None,
        key: str | None = None,
        replicas: int | None = None,
        headers: Headers | None = None,
    ) -> Emitted:
        """Emit one message.

        Args:
            event: Selects the handler.
            data: A JSON object for the handler.
            id: Identity of the message. A second message with this id is not emitted within the dedupe window. Default:
                a generated id.
            delay_s: Seconds until it is due, by the server's clock.
            at: When it is due: seconds since the epoch, or a datetime with a time zone.
            stream: The stream, instead of the default one.
            max_attempts: Total number of attempts, instead of the handler's setting. The worker limits it to that
                setting, or to its ``max_attempts_limit``.
            debounce: With ``delay_s``: a name under which only the last emitted message is delayed. Each new message
                replaces the previous one and restarts the delay.
            key: Messages of one key run one at a time and in the order in which they were emitted (with ``delay_s`` or
                ``at``: in which they are due), over all hosts, including retries. Different keys run concurrently.
            replicas: Return when this many replicas of the server have the message, so that a failover to one of them
                does not lose it. Default: ``settings.replicas``.
            headers: Names and strings that are stored with the message, also in retries: ``ctx.headers``. A trace
                context is added if tracing is on.

        Raises:
            NotReplicatedError: The replicas have not confirmed it in time. The message is written: with an ``id`` the
                call may be repeated.
            ConfigurationError: An argument is invalid. Nothing was sent.
            PayloadError: ``data`` cannot be JSON or is too large. Nothing was sent.
            QueueError: The server returned an error or did not reply.
            LifecycleError: This emitter was used in another event loop before.
        """
        wait = self._settings.replica_wait(replicas)
        message = NewMessage(event, data, id, delay_s, at, max_attempts, key=key, headers=headers)
        if tracing.active is None:
            return (await self._emit((message,), stream, wait, debounce))[0]
        name = self._plans.name(stream)
        carried = tracing.require_headers(headers)
        with tracing.active.send("redis", name, event=event, message_id=id, headers=carried) as span:
            message = replace(message, headers=span.headers)
            return (await self._emit((message,), stream, wait, debounce))[0]

    async def emit_many(
        self, messages: Iterable[NewMessage], *, stream: str | None = None, replicas: int | None = None
    ) -> list[Emitted]:
        """Emit many messages in atomic chunks of ``chunk_size``: all messages of a chunk are written, or none.

        Arguments are checked before anything is sent. If a chunk fails, the chunks before it are written.
        If all messages have ids, the whole call may be repeated.
        """
        wait = self._settings.replica_wait(replicas)
        if tracing.active is None:
            return await self._emit(messages, stream, wait)
        batch = checked_messages(messages)
        with tracing.active.send("redis", self._plans.name(stream), count=len(batch)) as span:
            return await self._emit(with_headers(batch, span.headers), stream, wait)

    async def emit_and_wait(  # noqa: PLR0913 - options of a message, keyword-only
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
        headers: Headers | None = None,
    ) -> Any:
        """Emit one message, wait through all its attempts, and return the handler's result. Any worker may handle it.

        If ``id`` was emitted before, the message is not emitted again, and its result is awaited.

        Args:
            event: Selects the handler.
            data: A JSON object for the handler.
            timeout_s: How long to wait. The job continues after that: ``job(id).result()`` waits again.
            keep_result_s: How long the result is kept after the end.
            id: Identity of the message; see ``emit``.
            stream: The stream, instead of the default one.
            max_attempts: Total number of attempts, instead of the handler's setting. The worker limits it to that
                setting, or to its ``max_attempts_limit``.
            key: Messages of one key run one at a time and in order, so the wait includes earlier messages of the key.
            headers: Names and texts that are sent with the message.

        Raises:
            JobFailedError: The job is dead.
            JobCancelledError: The job was cancelled.
            JobTimeoutError: The job has not ended in time.
        """
        require_seconds("timeout_s", timeout_s, zero_allowed=True)  # checked before the message is sent
        message = NewMessage(
            event, data, id, max_attempts=max_attempts, keep_result_s=keep_result_s, key=key, headers=headers
        )
        return await (await self.emit_job(message, stream=stream)).result(timeout_s=timeout_s)

    async def emit_job(self, message: NewMessage, *, stream: str | None = None) -> JobHandle:
        """Emit one message, and return its job, to wait for."""
        (emitted,) = await self.emit_many((message,), stream=stream)
        return JobHandle(self._client, emitted.stream, emitted.id)

    def job(self, job_id: str, *, stream: str | None = None) -> JobHandle:
        """Return the handle of a job, to wait for its result or read its progress. Sends nothing."""
        return JobHandle(self._client, self._plans.name(stream), require_text("id", job_id))

    async def report_progress(self, stream: str, job_id: str, progress: Progress) -> None:
        """Write the progress of a job; see ``JobContext.progress``."""
        await write_progress(self._client, stream, job_id, progress)

    async def _emit(
        self, messages: Iterable[NewMessage], stream: str | None, wait: ReplicaWait, debounce: str | None = None
    ) -> list[Emitted]:
        steps = self._plans.steps(messages, stream, debounce=debounce)
        self._check_loop()
        emitted: list[Emitted] = []
        for step in steps:
            sent = parse_reply(step, await step.send(self._client, wait))
            if self._keeps_states:
                await self._record(step.keys, new_states(step, sent))
            emitted += sent
        return emitted

    async def _record(self, keys: Keys, states: Sequence[NewState]) -> None:
        """Write the states of emitted jobs afterwards, and only of unknown ones: a host may already have run one."""
        if self._jobs is not None and states:
            await self._jobs.record_all(keys, states, only_new=True)

    def leave_loop(self) -> None:
        """Allow use in another event loop, after the connections were closed."""
        self._loop = None

    def _check_loop(self) -> None:
        """Require one event loop: an asyncio connection can only be used in the loop that opened it."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise LifecycleError(
                    "this emitter was used in another event loop, and its connections are of that one; make one for "
                    "each loop, or close() your Processor at the end of each, or use SyncEmitter"
                )
            self._loop = loop
