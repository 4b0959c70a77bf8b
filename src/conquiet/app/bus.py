"""Send messages outside of a transaction, directly to Redis."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from conquiet.processor.emit_requests import NewMessage
    from conquiet.processor.emitter import Emitter
    from conquiet.processor.partitioned_emitter import PartitionedEmitter, SyncPartitionedEmitter
    from conquiet.processor.settings import ProcessorSettings
    from conquiet.processor.sync_emitter import SyncEmitter
    from conquiet.redis_transport.client import AnyRedis


@dataclass(frozen=True, slots=True)
class Message:
    """One message to emit. ``repr`` does not show its data.

    Attributes:
        stream: Its stream.
        event: Its event.
        data: The JSON object.
        options: Further fields of ``NewMessage``.
    """

    stream: str
    event: str
    data: dict[str, Any] = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)


class Bus(Protocol):
    """Send messages outside of a transaction, and return their ids."""

    async def send(self, message: Message) -> str:
        """Send from a coroutine."""
        ...

    def send_sync(self, message: Message) -> str:
        """Send from a thread."""
        ...

    async def send_many(self, messages: list[Message]) -> list[str]:
        """Send many of one stream from a coroutine."""
        ...

    def send_many_sync(self, messages: list[Message]) -> list[str]:
        """Send many of one stream from a thread."""
        ...

    async def wait_for(self, message: Message, timeout_s: float) -> Any:
        """Send from a coroutine, and return the handler's result."""
        ...

    def wait_for_sync(self, message: Message, timeout_s: float) -> Any:
        """Send from a thread, and return the handler's result."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class RedisBus:
    """Send to Redis. The first message opens the connections.

    Args:
        redis: A client with the address and the credentials.
        stream: The application's stream.
        settings: Settings of its processor.
        is_partitioned: The application's stream has partitions.
    """

    def __init__(
        self, redis: "AnyRedis", stream: str, settings: "ProcessorSettings", *, is_partitioned: bool = False
    ) -> None:
        self._redis = redis
        self._stream = stream
        self._settings = settings
        self._is_partitioned = is_partitioned
        self._emitter: Emitter | None = None
        self._partitions: PartitionedEmitter | None = None
        self._client: Any = None
        self._sync_emitter: SyncEmitter | None = None
        self._sync_partitions: SyncPartitionedEmitter | None = None

    async def send_many(self, messages: list[Message]) -> list[str]:
        """See ``Bus``."""
        emitter, place = self._opened(messages[0].stream)
        return [one.id for one in await emitter.emit_many(map(new_message, messages), stream=place)]

    def send_many_sync(self, messages: list[Message]) -> list[str]:
        """See ``Bus``."""
        emitter, place = self._opened_sync(messages[0].stream)
        return [one.id for one in emitter.emit_many(map(new_message, messages), stream=place)]

    async def send(self, message: Message) -> str:
        """See ``Bus``."""
        emitter, place = self._opened(message.stream)
        return (await emitter.emit(message.event, message.data, stream=place, **message.options)).id

    def send_sync(self, message: Message) -> str:
        """See ``Bus``."""
        emitter, place = self._opened_sync(message.stream)
        return emitter.emit(message.event, message.data, stream=place, **message.options).id

    async def wait_for(self, message: Message, timeout_s: float) -> Any:
        """See ``Bus``."""
        emitter, place = self._opened(message.stream)
        return await (await emitter.emit_job(new_message(message), stream=place)).result(timeout_s=timeout_s)

    def wait_for_sync(self, message: Message, timeout_s: float) -> Any:
        """See ``Bus``."""
        emitter, place = self._opened_sync(message.stream)
        return emitter.emit_job(new_message(message), stream=place).result(timeout_s=timeout_s)

    async def close(self) -> None:
        """Close connections. The next message opens them again, in this or another event loop."""
        client, self._client, self._emitter, self._partitions = self._client, None, None, None
        if client is not None:
            await client.aclose()
        opened = (self._sync_emitter, self._sync_partitions)
        self._sync_emitter = self._sync_partitions = None
        for emitter in opened:
            if emitter is not None:
                emitter.close()

    def _opened(self, stream: str) -> "tuple[Emitter, str | None]":
        """Return the emitter for a stream, and the name of the stream for it: None if it has partitions."""
        if self._emitter is None:
            from conquiet.processor.emitter import Emitter
            from conquiet.processor.partitioned_emitter import PartitionedEmitter
            from conquiet.redis_transport.client import clone_async

            self._client = clone_async(self._redis)
            if self._is_partitioned:
                self._partitions = PartitionedEmitter(self._client, self._stream, self._settings)
            self._emitter = Emitter(self._client, self._stream, self._settings)
        if self._partitions is not None and stream == self._stream:
            return self._partitions, None
        return self._emitter, stream

    def _opened_sync(self, stream: str) -> "tuple[SyncEmitter, str | None]":
        if self._sync_emitter is None:
            from conquiet.processor.partitioned_emitter import SyncPartitionedEmitter
            from conquiet.processor.sync_emitter import SyncEmitter

            if self._is_partitioned:
                self._sync_partitions = SyncPartitionedEmitter(self._redis, self._stream, self._settings)
            self._sync_emitter = SyncEmitter(self._redis, self._stream, self._settings)
        if self._sync_partitions is not None and stream == self._stream:
            return self._sync_partitions, None
        return self._sync_emitter, stream


def new_message(message: Message) -> "NewMessage":
    """Convert a message for an emitter."""
    from conquiet.processor.emit_requests import NewMessage

    return NewMessage(message.event, message.data, **message.options)
