"""Emit to the partitions of a stream: by key, or in turn; with asyncio and without.

A message with a key asks the partition that has had the key so far. It is added there, or the answer is the number of
partitions after a growth: then it goes to the key's new partition, and so do all later ones, without asking.

See docs/decisions/0051.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from conquiet.core import tracing
from conquiet.core.signatures import takes_keywords_of
from conquiet.core.validation import require_text
from conquiet.errors import ConfigurationError
from conquiet.processor.emit_requests import EmitPlanner, Emitted, NewMessage, new_states, with_headers
from conquiet.processor.emitter import Emitter
from conquiet.processor.jobs import JobRecorder, record_new
from conquiet.processor.keys import keys_of
from conquiet.processor.partition_layout import PartitionLayout
from conquiet.processor.partition_routing import PartitionRouter, Placed, asking, read_answers
from conquiet.processor.partitioned_results import EmittedTo, PartitionedJobHandle, SyncPartitionedJobHandle
from conquiet.processor.partitions import Layout, partition_name, read_layout, require_stream_name
from conquiet.processor.scripts import script
from conquiet.processor.settings import ProcessorSettings
from conquiet.redis_transport.client import AnyRedis, AsyncClient, clone_sync
from conquiet.redis_transport.confirmation import Confirmation
from conquiet.redis_transport.confirmed import run_confirmed, run_confirmed_sync


class PartitionedEmitter:
    """Emits to one partitioned stream.

    Args:
        client: A client without retries, such as ``clone_async`` makes. It stays the caller's.
        stream: The stream's name.
        settings: Window of ids, chunk size, payload limit.
        jobs: Writes job states, if they are kept.
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
        """Emit one message; options as ``Emitter.emit``, without ``stream`` and ``debounce``."""
        _require_possible(options)
        replicas = options.pop("replicas", None)
        return (await self.emit_many([NewMessage(event, data, **options)], replicas=replicas))[0]

    async def emit_many(self, messages: Iterable[NewMessage], *, replicas: int | None = None) -> list[Emitted]:
        """Emit many messages: those of one partition atomically per chunk, those of one key in order."""
        how = self._settings.confirmation(replicas)
        batch = _checked(messages)
        if tracing.active is None:
            return await self._emit(batch, how)
        with tracing.active.send("redis", self._stream, count=len(batch)) as span:
            return await self._emit(with_headers(batch, span.headers), how)

    async def emit_and_wait(
        self,
        event: str,
        data: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = 30.0,
        keep_result_s: float = 3_600.0,
        id: str | None = None,  # noqa: A002 - the word for it
        max_attempts: int | None = None,
        key: str | None = None,
    ) -> Any:
        """Emit one message and return what its handler returns; see ``Processor.emit_and_wait``."""
        message = NewMessage(event, data, id, max_attempts=max_attempts, key=key, keep_result_s=keep_result_s)
        return await (await self.emit_job(message)).result(timeout_s=timeout_s)

    async def emit_job(self, message: NewMessage) -> PartitionedJobHandle:
        """Emit one message, and return its job, to wait for."""
        emitted = (await self.emit_many([message]))[0]
        place = EmittedTo(emitted.stream, message.key is not None, self._router.layout)
        return PartitionedJobHandle(self._client, self._stream, emitted.id, place)

    def job(self, job_id: str) -> PartitionedJobHandle:
        """Return a job by its id. Its result is looked for in all partitions, a second for each round."""
        return PartitionedJobHandle(self._client, self._stream, require_text("id", job_id))

    async def _emit(self, messages: Sequence[NewMessage], how: Confirmation) -> list[Emitted]:
        waiting = [Placed(place, message) for place, message in enumerate(messages)]
        emitted: dict[int, Emitted] = {}
        while waiting:
            layout = await self._current()
            moved: list[Placed] = []
            for index, those in self._router.by_partition(waiting, layout).items():
                moved += await self._send(index, those, emitted, how)
            for placed in moved:
                self._router.note_sent_on(placed.message.key or "", placed.sent_by, layout)
            waiting = moved
        return [emitted[place] for place in sorted(emitted)]

    async def _send(
        self, index: int, messages: Sequence[Placed], emitted: dict[int, Emitted], how: Confirmation
    ) -> list[Placed]:
        """Send to one partition; return the messages whose keys belong to another one by now."""
        moved: list[Placed] = []
        places = iter(messages)
        name = partition_name(self._stream, index)
        for step in map(asking, self._plans.steps([placed.message for placed in messages], name)):
            if how.replicas:
                reply = await run_confirmed(step.script, self._client, step.names, step.args, how, name)
            else:
                reply = await step.script.call(self._client, step.names, step.args, stream=name)
            answers = read_answers(step, reply, [next(places) for _ in step.messages], index)
            moved += answers.moved
            emitted |= dict(zip(answers.places, answers.sent, strict=True))
            if self._jobs is not None and (states := new_states(answers.step, answers.sent)):
                await self._jobs.record_all(step.keys, states, only_new=True)
        return moved

    async def _current(self) -> Layout:
        layout = self._router.layout
        if layout is None:
            layout = self._router.layout = await self._layouts.read()
        return layout


class SyncPartitionedEmitter:
    """Emits to one partitioned stream from plain functions, by any number of threads; see ``SyncEmitter``.

    Args:
        redis: A client of redis-py. It stays as it is; connections of our own are opened.
        stream: The stream's name.
        settings: As for ``SyncEmitter``.
    """

    def __init__(self, redis: AnyRedis, stream: str, settings: ProcessorSettings | None = None) -> None:
        self._stream = require_stream_name(stream)
        self._settings = ProcessorSettings() if settings is None else settings
        self._plans = EmitPlanner(stream, self._settings)
        self._client = clone_sync(redis)
        self._router = PartitionRouter()
        self._routing = threading.Lock()

    @takes_keywords_of(Emitter.emit)
    def emit(self, event: str, data: Mapping[str, Any] | None = None, **options: Any) -> Emitted:
        """Emit one message; see ``PartitionedEmitter.emit``."""
        _require_possible(options)
        replicas = options.pop("replicas", None)
        return self.emit_many([NewMessage(event, data, **options)], replicas=replicas)[0]

    def emit_many(self, messages: Iterable[NewMessage], *, replicas: int | None = None) -> list[Emitted]:
        """Emit many messages; see ``PartitionedEmitter.emit_many``."""
        how = self._settings.confirmation(replicas)
        batch = _checked(messages)
        if tracing.active is None:
            return self._emit(batch, how)
        with tracing.active.send("redis", self._stream, count=len(batch)) as span:
            return self._emit(with_headers(batch, span.headers), how)

    def emit_and_wait(
        self,
        event: str,
        data: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = 30.0,
        keep_result_s: float = 3_600.0,
        id: str | None = None,  # noqa: A002 - the word for it
        max_attempts: int | None = None,
        key: str | None = None,
    ) -> Any:
        """Emit one message and return what its handler returns; see ``Processor.emit_and_wait``.

        The calling thread waits, and holds one connection meanwhile.
        """
        message = NewMessage(event, data, id, max_attempts=max_attempts, key=key, keep_result_s=keep_result_s)
        return self.emit_job(message).result(timeout_s=timeout_s)

    def emit_job(self, message: NewMessage) -> SyncPartitionedJobHandle:
        """Emit one message, and return its job, to wait for."""
        emitted = self.emit_many([message])[0]
        place = EmittedTo(emitted.stream, message.key is not None, self._router.layout)
        return SyncPartitionedJobHandle(self._client, self._stream, emitted.id, place)

    def job(self, job_id: str) -> SyncPartitionedJobHandle:
        """Return a job by its id. Its result is looked for in all partitions, a second for each round."""
        return SyncPartitionedJobHandle(self._client, self._stream, require_text("id", job_id))

    def close(self) -> None:
        """Close our connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close our connections."""
        self.close()

    def _emit(self, messages: Sequence[NewMessage], how: Confirmation) -> list[Emitted]:
        waiting = [Placed(place, message) for place, message in enumerate(messages)]
        emitted: dict[int, Emitted] = {}
        while waiting:
            layout = self._current()
            with self._routing:
                chosen = self._router.by_partition(waiting, layout)
            moved = [placed for index, those in chosen.items() for placed in self._send(index, those, emitted, how)]
            with self._routing:
                for placed in moved:
                    self._router.note_sent_on(placed.message.key or "", placed.sent_by, layout)
            waiting = moved
        return [emitted[place] for place in sorted(emitted)]

    def _send(
        self, index: int, messages: Sequence[Placed], emitted: dict[int, Emitted], how: Confirmation
    ) -> list[Placed]:
        moved: list[Placed] = []
        places = iter(messages)
        name = partition_name(self._stream, index)
        for step in map(asking, self._plans.steps([placed.message for placed in messages], name)):
            if how.replicas:
                reply = run_confirmed_sync(step.script, self._client, step.names, step.args, how, name)
            else:
                reply = step.script.call_sync(self._client, step.names, step.args, stream=name)
            answers = read_answers(step, reply, [next(places) for _ in step.messages], index)
            moved += answers.moved
            emitted |= dict(zip(answers.places, answers.sent, strict=True))
            if self._settings.job_ttl_s is not None:
                states = new_states(answers.step, answers.sent)
                record_new(self._client, step.keys, states, ttl_s=self._settings.job_ttl_s)
        return moved

    def _current(self) -> Layout:
        layout = self._router.layout
        if layout is None:
            names = (f"{keys_of(self._stream).base}:partitions",)
            reply = script("partition_count").call_sync(self._client, names, (), stream=self._stream)
            layout = self._router.layout = read_layout(reply)
        return layout


def _require_possible(options: dict[str, Any]) -> None:
    if options.pop("stream", None) is not None or options.pop("debounce", None) is not None:
        raise ConfigurationError("a partitioned stream takes neither stream nor debounce. Nothing was sent")


def _checked(messages: Iterable[NewMessage]) -> list[NewMessage]:
    batch = list(messages)
    for message in batch:
        if not isinstance(message, NewMessage):
            raise ConfigurationError(f"messages must be NewMessage(event, data, ...), got a {type(message).__name__}")
    return batch
