"""The emitter for code without asyncio: the same messages by the same scripts, only the waiting differs."""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from conquiet.processor.jobs import note_new
from conquiet.processor.plans import Delay, Emitted, Moment, NewMessage, Plans, Step, answered, new_states
from conquiet.processor.settings import ProcessorSettings
from conquiet.queue.client import AnyRedis, clone_sync


class SyncEmitter:
    """Emits to streams of one server, from plain functions: web views, scripts, other people's threads.

    One emitter serves any number of threads. After a fork each process makes its own.

    Args:
        redis: A ``redis.Redis`` or ``redis.asyncio.Redis``. It stays as it is; connections of our own are opened.
        stream: Where messages go that name no stream.
        settings: Those of the processor that handles the messages: window of ids, chunk size, payload limit, and
            ``job_ttl_s`` if job states are kept.
    """

    def __init__(self, redis: AnyRedis, stream: str, settings: ProcessorSettings | None = None) -> None:
        self._settings = ProcessorSettings() if settings is None else settings
        self._plans = Plans(stream, self._settings)
        self._client = clone_sync(redis)

    def emit(
        self,
        event: str,
        data: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,  # noqa: A002 - the word for it
        delay: Delay | None = None,
        at: Moment | None = None,
        stream: str | None = None,
        max_attempts: int | None = None,
        debounce: str | None = None,
    ) -> Emitted:
        """Emit one message; see ``Emitter.emit`` for the arguments and errors."""
        message = NewMessage(event, data, id, delay, at, max_attempts)
        return self._send(self._plans.steps((message,), stream, debounce=debounce))[0]

    def emit_many(self, messages: Iterable[NewMessage], *, stream: str | None = None) -> list[Emitted]:
        """Emit many messages, atomically per chunk; see ``Emitter.emit_many``."""
        return self._send(self._plans.steps(messages, stream))

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

    def _send(self, steps: Iterable[Step]) -> list[Emitted]:
        emitted: list[Emitted] = []
        for step in steps:
            reply = step.script.call_sync(self._client, step.names, step.args, stream=step.keys.stream)
            sent = answered(step, reply)
            if self._settings.job_ttl_s is not None:
                note_new(self._client, step.keys, new_states(step, sent), ttl_s=self._settings.job_ttl_s)
            emitted += sent
        return emitted
