"""Fixtures of the queue's tests: clients of every kind, queues that are closed, counted commands."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
import redis
from tests.redis_clients import RawRedis

from conquiet.config import QueueConfig
from conquiet.queue import QueueConsumer, RedisStreamsQueue

DEFAULT_KIND = "plain"
CLIENT_KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "resp2": {"protocol": 2},
    "resp3": {"protocol": 3},
    "text": {"decode_responses": True},
    "text-resp3": {"decode_responses": True, "protocol": 3},
}
if int(redis.__version__.split(".")[0]) >= 8:  # the setting came with redis-py 8
    CLIENT_KINDS["modern"] = {"legacy_responses": False}


class Connect(Protocol):
    def __call__(self, url: str | None = None, **options: Any) -> RawRedis: ...


class MakeQueue(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> RedisStreamsQueue: ...


class MakeConsumer(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> QueueConsumer: ...


@pytest.fixture
def stream(key_prefix: str) -> str:
    return f"{key_prefix}orders"


@pytest.fixture
def connect(redis_url: str) -> Iterator[Connect]:
    """Clients as an application creates them, closed at the end."""
    with contextlib.ExitStack() as stack:

        def open_client(url: str | None = None, **options: Any) -> RawRedis:
            client = RawRedis.from_url(url or redis_url, **options)
            stack.callback(client.close)
            return client

        yield open_client


@pytest.fixture
def raw(redis_url: str) -> Iterator[RawRedis]:
    """Yield a client that inspects the server, and acts as another program."""
    client = RawRedis.from_url(redis_url, protocol=2)
    yield client
    client.close()


@pytest.fixture
def make_queue(connect: Connect, stream: str) -> Iterator[MakeQueue]:
    with contextlib.ExitStack() as stack:

        def make(
            consumer: str = "alice", *, client: Any = None, command_timeout_s: float = 5.0, **settings: Any
        ) -> RedisStreamsQueue:
            config = QueueConfig(settings.pop("stream_key", stream), "billing", consumer, **settings)
            queue = RedisStreamsQueue(client or connect(), config, command_timeout_s=command_timeout_s)
            return stack.enter_context(queue)

        yield make


@pytest.fixture
def make_consumer(connect: Connect, stream: str) -> Iterator[MakeConsumer]:
    with contextlib.ExitStack() as stack:

        def make(
            consumer: str = "alice",
            *,
            client: Any = None,
            command_timeout_s: float = 5.0,
            enable_signal_handlers: bool = False,
            **settings: Any,
        ) -> QueueConsumer:
            config = QueueConfig(stream, "billing", consumer, **settings)
            made = QueueConsumer(
                client or connect(),
                config,
                enable_signal_handlers=enable_signal_handlers,
                command_timeout_s=command_timeout_s,
            )
            return stack.enter_context(made)

        yield make


@pytest.fixture
def queue(make_queue: MakeQueue) -> RedisStreamsQueue:
    return make_queue()


@pytest.fixture
def consumer(make_consumer: MakeConsumer) -> QueueConsumer:
    return make_consumer()


class Pending(Protocol):
    def __call__(self, group: str = "billing") -> dict[str, tuple[str, int]]: ...


@pytest.fixture
def pending(raw: RawRedis, stream: str) -> Pending:
    """``pending()`` returns the pending entries of the server: id → (consumer, deliveries)."""

    def ask(group: str = "billing") -> dict[str, tuple[str, int]]:
        rows = raw.xpending_range(stream, group, "-", "+", 10_000)
        return {row["message_id"].decode(): (row["consumer"].decode(), row["times_delivered"]) for row in rows}

    return ask


@pytest.fixture
def commands_of(raw: RawRedis) -> Callable[[], dict[str, int]]:
    """``commands_of()`` is how often the server has run each command since the test began."""
    raw.config_resetstat()

    def ask() -> dict[str, int]:
        return {
            name.removeprefix("cmdstat_"): numbers["calls"]
            for name, numbers in raw.info("commandstats").items()
            if numbers["calls"]
        }

    return ask


@pytest.fixture
def add_raw(raw: RawRedis, stream: str) -> Callable[..., str]:
    """``add_raw({b"data": b"oops"})`` writes an entry as another program would, and returns its id."""

    def add(fields: dict[Any, Any]) -> str:
        return str(raw.xadd(stream, fields).decode())

    return add
