"""The emitter for code without asyncio. It sends the same messages with the same scripts as ``emitter``."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Unpack

from conquiet.core import tracing
from conquiet.core.closing import ClosedAfterUse
from conquiet.core.signatures import takes_keywords_of
from conquiet.core.validation import require_text
from conquiet.processor.emit_requests import (
    EmitPlanner,
    Emitted,
    JobEmitOptions,
    MessageOptions,
    NewMessage,
    new_states,
    parse_reply,
    reject_due_time,
    with_headers,
)
from conquiet.processor.emitter import Emitter
from conquiet.processor.jobs import record_new
from conquiet.processor.results import SyncJobHandle
from conquiet.processor.settings import ProcessorSettings
from conquiet.redis_transport.client import AnyRedis, clone_sync
from conquiet.redis_transport.replica_wait import ReplicaWait


class SyncEmitter(ClosedAfterUse):
    """Emits to streams of one server from plain functions: web views, scripts, threads.

    One emitter serves any number of threads. After a fork, each process must create a new one.

    Args:
        redis: A ``redis.Redis`` or ``redis.asyncio.Redis``. Separate connections to the same server are opened.
        stream: Default stream.
        settings: The settings of the processor that handles the messages: dedupe window, chunk size, payload limit, and
            ``job_ttl_s`` if job states are kept.
    """

    def __init__(self, redis: AnyRedis, stream: str, settings: ProcessorSettings | None = None) -> None:
        self._settings = ProcessorSettings() if settings is None else settings
        self._plans = EmitPlanner(stream, self._settings)
        self._client = clone_sync(redis)

    @takes_keywords_of(Emitter.emit)
    def emit(
        self,
        event: str,
        data: Mapping[str, Any] | None = None,
        *,
        stream: str | None = None,
        debounce: str | None = None,
        replicas: int | None = None,
        **options: Unpack[MessageOptions],
    ) -> Emitted:
        """Emit one message; see ``Emitter.emit`` for the arguments and errors."""
        wait = self._settings.replica_wait(replicas)
        message = NewMessage(event, data, **options)
        if tracing.active is None:
            return self._emit((message,), stream, wait, debounce)[0]
        name = self._plans.name(stream)
        with tracing.active.send("redis", name, event=event, message_id=message.id, headers=message.headers) as span:
            message = replace(message, headers=span.headers)
            return self._emit((message,), stream, wait, debounce)[0]

    def emit_many(
        self, messages: Iterable[NewMessage], *, stream: str | None = None, replicas: int | None = None
    ) -> list[Emitted]:
        """Emit many messages, atomically per chunk; see ``Emitter.emit_many``."""
        wait = self._settings.replica_wait(replicas)
        if tracing.active is None:
            return self._emit(messages, stream, wait)
        batch = list(messages)
        with tracing.active.send("redis", self._plans.name(stream), count=len(batch)) as span:
            return self._emit(with_headers(batch, span.headers), stream, wait)

    @takes_keywords_of(Emitter.emit_and_wait)
    def emit_and_wait(
        self,
        event: str,
        data: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = 30.0,
        keep_result_s: float = 3_600.0,
        stream: str | None = None,
        **options: Unpack[JobEmitOptions],
    ) -> Any:
        """Emit one message, wait, and return the handler's result; see ``Emitter.emit_and_wait``.

        The wait blocks the calling thread and holds one connection.
        """
        reject_due_time(options)
        message = NewMessage(event, data, keep_result_s=keep_result_s, **options)
        return self.emit_job(message, stream=stream).result(timeout_s=timeout_s)

    def emit_job(self, message: NewMessage, *, stream: str | None = None) -> SyncJobHandle:
        """Emit one message, and return its job, to wait for."""
        (emitted,) = self.emit_many((message,), stream=stream)
        return SyncJobHandle(self._client, emitted.stream, emitted.id)

    def job(self, job_id: str, *, stream: str | None = None) -> SyncJobHandle:
        """Return the handle of a job, to wait for its result or read its progress. Sends nothing."""
        return SyncJobHandle(self._client, self._plans.name(stream), require_text("id", job_id))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _emit(
        self, messages: Iterable[NewMessage], stream: str | None, wait: ReplicaWait, debounce: str | None = None
    ) -> list[Emitted]:
        emitted: list[Emitted] = []
        for step in self._plans.steps(messages, stream, debounce=debounce):
            sent = parse_reply(step, step.send_sync(self._client, wait))
            if self._settings.job_ttl_s is not None:
                record_new(self._client, step.keys, new_states(step, sent), ttl_s=self._settings.job_ttl_s)
            emitted += sent
        return emitted
