"""Send messages outside of a transaction, directly to Redis."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from conquiet.core.tracing import Headers

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
        event: Its event.
        data: The JSON object.
        stream: Its stream.
        id: Identity given by the caller; None makes one.
        delay_s: Seconds until it is due.
        at: When it is due.
        key: Messages of one key run one at a time and in order.
        headers: Its headers.
        keep_result_s: Seconds for which the handler's result is kept; None keeps none.
    """

    event: str
    data: dict[str, Any] = field(repr=False)
    stream: str
    id: str | None = None
    delay_s: float | None = None
    at: datetime | None = None
    key: str | None = None
    headers: Headers | None = field(default=None, repr=False)
    keep_result_s: float | None = None


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
        emitter, partitions = self._opened()
        if partitions is not None and messages[0].stream == self._stream:
            return [one.id for one in await partitions.emit_many(new_messages(messages))]
        sent = await emitter.emit_many(new_messages(messages), stream=messages[0].stream)
        return [one.id for one in sent]

    def send_many_sync(self, messages: list[Message]) -> list[str]:
        """See ``Bus``."""
        emitter, partitions = self._opened_sync()
        if partitions is not None and messages[0].stream == self._stream:
            return [one.id for one in partitions.emit_many(new_messages(messages))]
        sent = emitter.emit_many(new_messages(messages), stream=messages[0].stream)
        return [one.id for one in sent]

    async def send(self, message: Message) -> str:
        """See ``Bus``."""
        emitter, partitions = self._opened()
        if partitions is not None and message.stream == self._stream:
            return (await partitions.emit(message.event, message.data, **_options(message))).id
        return (await emitter.emit(message.event, message.data, stream=message.stream, **_options(message))).id

    def send_sync(self, message: Message) -> str:
        """See ``Bus``."""
        emitter, partitions = self._opened_sync()
        if partitions is not None and message.stream == self._stream:
            return partitions.emit(message.event, message.data, **_options(message)).id
        return emitter.emit(message.event, message.data, stream=message.stream, **_options(message)).id

    async def wait_for(self, message: Message, timeout_s: float) -> Any:
        """See ``Bus``."""
        from conquiet.processor.results import JobHandle

        emitter, partitions = self._opened()
        if partitions is not None and message.stream == self._stream:
            (new,) = new_messages([message])
            return await (await partitions.emit_job(new)).result(timeout_s=timeout_s)
        (sent,) = await emitter.emit_many(new_messages([message]), stream=message.stream)
        return await JobHandle(self._client, sent.stream, sent.id).result(timeout_s=timeout_s)

    def wait_for_sync(self, message: Message, timeout_s: float) -> Any:
        """See ``Bus``."""
        emitter, partitions = self._opened_sync()
        if partitions is not None and message.stream == self._stream:
            (new,) = new_messages([message])
            return partitions.emit_job(new).result(timeout_s=timeout_s)
        (sent,) = emitter.emit_many(new_messages([message]), stream=message.stream)
        return emitter.job(sent.id, stream=sent.stream).result(timeout_s=timeout_s)

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

    def _opened(self) -> "tuple[Emitter, PartitionedEmitter | None]":
        if self._emitter is None:
            from conquiet.processor.emitter import Emitter
            from conquiet.processor.partitioned_emitter import PartitionedEmitter
            from conquiet.redis_transport.client import clone_async

            self._client = clone_async(self._redis)
            if self._is_partitioned:
                self._partitions = PartitionedEmitter(self._client, self._stream, self._settings)
            self._emitter = Emitter(self._client, self._stream, self._settings)
        return self._emitter, self._partitions

    def _opened_sync(self) -> "tuple[SyncEmitter, SyncPartitionedEmitter | None]":
        if self._sync_emitter is None:
            from conquiet.processor.partitioned_emitter import SyncPartitionedEmitter
            from conquiet.processor.sync_emitter import SyncEmitter

            if self._is_partitioned:
                self._sync_partitions = SyncPartitionedEmitter(self._redis, self._stream, self._settings)
            self._sync_emitter = SyncEmitter(self._redis, self._stream, self._settings)
        return self._sync_emitter, self._sync_partitions


def _options(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "delay_s": message.delay_s,
        "at": message.at,
        "key": message.key,
        "headers": message.headers,
    }


def new_messages(messages: list[Message]) -> "list[NewMessage]":
    """Convert messages for an emitter."""
    from conquiet.processor.emit_requests import NewMessage

    return [
        NewMessage(
            one.event,
            one.data,
            id=one.id,
            delay_s=one.delay_s,
            at=one.at,
            key=one.key,
            headers=one.headers,
            keep_result_s=one.keep_result_s,
        )
        for one in messages
    ]
