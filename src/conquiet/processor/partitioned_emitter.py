"""Emit to the partitions of a stream, by key or round-robin, with and without asyncio. ``partition_routing`` chooses.

See docs/decisions/0051.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from conquiet.core import tracing
from conquiet.core.closing import ClosedAfterUse
from conquiet.core.signatures import takes_keywords_of
from conquiet.core.validation import require_text
from conquiet.errors import ConfigurationError
from conquiet.processor.emit_requests import (
    EmitPlanner,
    Emitted,
    JobOptions,
    NewMessage,
    require_new_message,
    with_headers,
)
from conquiet.processor.emitter import Emitter
from conquiet.processor.jobs import JobRecorder, record_new
from conquiet.processor.operator_calls import OperatorCalls
from conquiet.processor.partition_layout import PartitionLayout, read_layout_sync
from conquiet.processor.partition_routing import PartitionRouter, RoutedMessages
from conquiet.processor.partitioned_results import EmittedTo, PartitionedJobHandle, SyncPartitionedJobHandle
from conquiet.processor.partitions import require_stream_name
from conquiet.processor.settings import ProcessorSettings
from conquiet.redis_transport.client import AnyRedis, AsyncClient, clone_sync
from conquiet.redis_transport.replica_wait import ReplicaWait


class PartitionedEmitter:
    """Emits to one partitioned stream.

    Args:
        client: A client without retries, as returned by ``clone_async``. The caller closes it.
        stream: Name of the stream.
        settings: Dedupe window, chunk size, payload limit.
        jobs: Writes job states. None if they are not kept.
    """

    def __init__(
        self,
        client: AsyncClient,
        stream: str,
        settings: ProcessorSettings | None = None,
        *,
        jobs: JobRecorder | None = None,
    ) -> None:
        self._client = client
        self._stream = stream
        self._layouts = PartitionLayout(client, stream)
        self._settings = ProcessorSettings() if settings is None else settings
        self._plans = EmitPlanner(stream, self._settings)
        self._jobs = jobs
        self._router = PartitionRouter()

    @takes_keywords_of(Emitter.emit)
    async def emit(self, event: str, data: Mapping[str, Any] | None = None, **options: Any) -> Emitted:
        """Emit one message. Options as for ``Emitter.emit``, without ``stream`` and ``debounce``."""
        _require_possible(options)
        replicas = options.pop("replicas", None)
        return (await self.emit_many([NewMessage(event, data, **options)], replicas=replicas))[0]

    async def emit_many(self, messages: Iterable[NewMessage], *, replicas: int | None = None) -> list[Emitted]:
        """Emit many messages, atomically per partition and chunk, and in order for each key."""
        wait = self._settings.replica_wait(replicas)
        batch = _checked(messages)
        if tracing.active is None:
            return await self._emit(batch, wait)
        with tracing.active.send("redis", self._stream, count=len(batch)) as span:
            return await self._emit(with_headers(batch, span.headers), wait)

    @takes_keywords_of(OperatorCalls.emit_and_wait, without="stream")
    async def emit_and_wait(
        self,
        event: str,
        data: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = 30.0,
        keep_result_s: float = 3_600.0,
        **options: Unpack[JobOptions],
    ) -> Any:
        """Emit one message, wait, and return the handler's result; see ``Processor.emit_and_wait``."""
        message = NewMessage(event, data, keep_result_s=keep_result_s, **options)
        return await (await self.emit_job(message)).result(timeout_s=timeout_s)

    async def emit_job(self, message: NewMessage) -> PartitionedJobHandle:
        """Emit one message, and return its job, to wait for."""
        (emitted,) = await self.emit_many([message])
        place = EmittedTo(emitted.stream, message.key is not None, self._router.layout)
        return PartitionedJobHandle(self._client, self._stream, emitted.id, place)

    def job(self, job_id: str) -> PartitionedJobHandle:
        """Return the handle of a job. It queries all partitions for the result; one round takes at most a second."""
        return PartitionedJobHandle(self._client, self._stream, require_text("id", job_id))

    async def _emit(self, messages: Sequence[NewMessage], wait: ReplicaWait) -> list[Emitted]:
        routed = RoutedMessages(self._router, self._plans, self._stream, messages)
        while routed.waiting:
            layout = self._router.layout
            if layout is None:
                layout = self._router.layout = await self._layouts.read()
            for step, here, index in routed.steps(layout):
                states = routed.accept(step, await step.send(self._client, wait), here, index)
                if self._jobs is not None and states:
                    await self._jobs.record_all(step.keys, states, only_new=True)
        return routed.emitted()


class SyncPartitionedEmitter(ClosedAfterUse):
    """Emits to one partitioned stream from plain functions, in any number of threads; see ``SyncEmitter``.

    Args:
        redis: A client of redis-py. Separate connections to the same server are opened.
        stream: Name of the stream.
        settings: As for ``SyncEmitter``.
    """

    def __init__(self, redis: AnyRedis, stream: str, settings: ProcessorSettings | None = None) -> None:
        self._stream = require_stream_name(stream)
        self._settings = ProcessorSettings() if settings is None else settings
        self._plans = EmitPlanner(stream, self._settings)
        self._client = clone_sync(redis)
        self._router = PartitionRouter()

    @takes_keywords_of(Emitter.emit)
    def emit(self, event: str, data: Mapping[str, Any] | None = None, **options: Any) -> Emitted:
        """Emit one message; see ``PartitionedEmitter.emit``."""
        _require_possible(options)
        replicas = options.pop("replicas", None)
        return self.emit_many([NewMessage(event, data, **options)], replicas=replicas)[0]

    def emit_many(self, messages: Iterable[NewMessage], *, replicas: int | None = None) -> list[Emitted]:
        """Emit many messages; see ``PartitionedEmitter.emit_many``."""
        wait = self._settings.replica_wait(replicas)
        batch = _checked(messages)
        if tracing.active is None:
            return self._emit(batch, wait)
        with tracing.active.send("redis", self._stream, count=len(batch)) as span:
            return self._emit(with_headers(batch, span.headers), wait)

    @takes_keywords_of(OperatorCalls.emit_and_wait, without="stream")
    def emit_and_wait(
        self,
        event: str,
        data: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = 30.0,
        keep_result_s: float = 3_600.0,
        **options: Unpack[JobOptions],
    ) -> Any:
        """Emit one message, wait, and return the handler's result; see ``Processor.emit_and_wait``.

        The wait blocks the calling thread and holds one connection.
        """
        message = NewMessage(event, data, keep_result_s=keep_result_s, **options)
        return self.emit_job(message).result(timeout_s=timeout_s)

    def emit_job(self, message: NewMessage) -> SyncPartitionedJobHandle:
        """Emit one message, and return its job, to wait for."""
        (emitted,) = self.emit_many([message])
        place = EmittedTo(emitted.stream, message.key is not None, self._router.layout)
        return SyncPartitionedJobHandle(self._client, self._stream, emitted.id, place)

    def job(self, job_id: str) -> SyncPartitionedJobHandle:
        """Return the handle of a job. It queries all partitions for the result; one round takes at most a second."""
        return SyncPartitionedJobHandle(self._client, self._stream, require_text("id", job_id))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _emit(self, messages: Sequence[NewMessage], wait: ReplicaWait) -> list[Emitted]:
        routed = RoutedMessages(self._router, self._plans, self._stream, messages)
        while routed.waiting:
            layout = self._router.layout
            if layout is None:
                layout = self._router.layout = read_layout_sync(self._client, self._stream)
            for step, here, index in routed.steps(layout):
                states = routed.accept(step, step.send_sync(self._client, wait), here, index)
                if self._settings.job_ttl_s is not None:
                    record_new(self._client, step.keys, states, ttl_s=self._settings.job_ttl_s)
        return routed.emitted()


def _require_possible(options: dict[str, Any]) -> None:
    if options.pop("stream", None) is not None or options.pop("debounce", None) is not None:
        raise ConfigurationError("a partitioned stream takes neither stream nor debounce. Nothing was sent")


def _checked(messages: Iterable[NewMessage]) -> list[NewMessage]:
    batch = list(messages)
    for message in batch:
        require_new_message(message)
    return batch
