"""Emit to the partitions of a stream, by key or round-robin, with and without asyncio. ``partition_routing`` chooses.

See docs/decisions/0051.
"""

from collections.abc import Iterable

from conquiet.core.threads import run_without_loop
from conquiet.core.validation import require_text
from conquiet.errors import ConfigurationError
from conquiet.processor.emit_requests import Emitted, NewMessage, checked_messages
from conquiet.processor.emitter import Emitter
from conquiet.processor.jobs import JobRecorder
from conquiet.processor.partition_layout import PartitionLayout
from conquiet.processor.partition_routing import PartitionRouter, RoutedMessages
from conquiet.processor.partitioned_results import EmittedTo, PartitionedJobHandle, SyncPartitionedJobHandle
from conquiet.processor.partitions import require_stream_name
from conquiet.processor.settings import ProcessorSettings
from conquiet.processor.sync_emitter import BlockingEmitter, SyncEmitter
from conquiet.redis_transport.client import AsyncClient
from conquiet.redis_transport.replica_wait import ReplicaWait


class PartitionedEmitter(Emitter):
    """Emits to one partitioned stream. It takes neither ``stream`` nor ``debounce``.

    ``emit_many`` is atomic per partition and chunk, and in order for each key.

    Args:
        client: A client without retries and without ``decode_responses``. The caller closes it.
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
        self._stream = require_stream_name(stream)
        super().__init__(client, stream, settings, jobs=jobs)
        self._layouts = PartitionLayout(client, stream)
        self._router = PartitionRouter()

    async def emit_job(self, message: NewMessage, *, stream: str | None = None) -> PartitionedJobHandle:
        """Emit one message, and return its job, to wait for."""
        (emitted,) = await self.emit_many((message,), stream=stream)
        place = EmittedTo(emitted.stream, message.key is not None, self._router.layout)
        return PartitionedJobHandle(self._client, self._stream, emitted.id, place)

    def job(self, job_id: str, *, stream: str | None = None) -> PartitionedJobHandle:
        """Return the handle of a job. It queries all partitions for the result; one round takes at most a second."""
        _require_none(stream)
        return PartitionedJobHandle(self._client, self._stream, require_text("id", job_id))

    async def _emit(
        self, messages: Iterable[NewMessage], stream: str | None, wait: ReplicaWait, debounce: str | None = None
    ) -> list[Emitted]:
        _require_none(stream, debounce)
        routed = RoutedMessages(self._router, self._plans, self._stream, checked_messages(messages))
        self._check_loop()
        while routed.waiting:
            layout = self._router.layout
            if layout is None:
                layout = self._router.layout = await self._layouts.read()
            for step, here, index in routed.steps(layout):
                states = routed.accept(step, await step.send(self._client, wait), here, index)
                await self._record(step.keys, states)
        return routed.emitted()


class _BlockingPartitionedEmitter(BlockingEmitter, PartitionedEmitter):
    """``PartitionedEmitter`` on a synchronous client."""


class SyncPartitionedEmitter(SyncEmitter):
    """Emits to one partitioned stream from plain functions, in any number of threads; see ``PartitionedEmitter``.

    Args:
        redis: A client of redis-py. Separate connections to the same server are opened.
        stream: Name of the stream.
        settings: As for ``SyncEmitter``.
    """

    _kind = _BlockingPartitionedEmitter
    _emitter: PartitionedEmitter

    def emit_job(self, message: NewMessage, *, stream: str | None = None) -> SyncPartitionedJobHandle:
        """Emit one message, and return its job, to wait for."""
        job = run_without_loop(self._emitter.emit_job(message, stream=stream))
        return SyncPartitionedJobHandle(self._client, job.stream, job.id, job.emitted_to)

    def job(self, job_id: str, *, stream: str | None = None) -> SyncPartitionedJobHandle:
        """Return the handle of a job. It queries all partitions for the result; one round takes at most a second."""
        job = self._emitter.job(job_id, stream=stream)
        return SyncPartitionedJobHandle(self._client, job.stream, job.id)


def _require_none(stream: str | None, debounce: str | None = None) -> None:
    if stream is not None or debounce is not None:
        raise ConfigurationError("a partitioned stream takes neither stream nor debounce. Nothing was sent")
