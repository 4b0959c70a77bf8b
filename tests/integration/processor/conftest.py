"""Processors on a real Redis, closed at the end of their test."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.redis_clients import RawAsyncRedis

from conquiet.core.backoff import Backoff
from conquiet.core.json_codec import decode_payload
from conquiet.processor import Processor, ProcessorSettings
from conquiet.processor.envelope import from_payload
from conquiet.processor.keys import Keys, keys_of

MakeProcessor = Callable[..., Processor]


@pytest.fixture
def keys(key_prefix: str) -> Keys:
    return keys_of(f"{key_prefix}orders")


@pytest.fixture
def stream(keys: Keys) -> str:
    return keys.stream


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[RawAsyncRedis]:
    """The client that the test inspects the server with; its replies are the same with every redis-py."""
    own = RawAsyncRedis.from_url(redis_url, protocol=2)
    yield own
    await own.aclose()


@pytest.fixture
async def make_processor(client: RawAsyncRedis, stream: str) -> AsyncIterator[MakeProcessor]:
    """``make_processor(url=…, streams=…, concurrency=…, runtime=…, **settings)``."""
    made: list[Processor] = []
    clients: list[RawAsyncRedis] = []

    def make(
        *, url: str | None = None, streams: list[str] | None = None, runtime: Any = None, **options: Any
    ) -> Processor:
        own = client
        if url is not None:
            own = RawAsyncRedis.from_url(url)
            clients.append(own)
        engine: dict[str, Any] = {
            name: options.pop(name) for name in ("concurrency", "group", "consumer_id") if name in options
        }
        options.setdefault("settle_backoff", Backoff(base_s=0.02, cap_s=0.2))
        options.setdefault("retention", None)  # tests count the entries that were ever written
        processor = Processor(
            own,
            streams or [stream],
            settings=ProcessorSettings(**options),
            runtime=runtime,
            **{"concurrency": 8} | engine,
        )
        made.append(processor)
        return processor

    yield make
    for processor in made:
        await processor.close()
    for own in clients:
        await own.aclose()


class Place:
    """The state of the server, read without the code under test."""

    def __init__(self, client: RawAsyncRedis, keys: Keys) -> None:
        self.client = client
        self.keys = keys

    async def attempts(self) -> list[tuple[str, int]]:
        """Id and attempt of every entry ever written to the stream (it is never trimmed)."""
        entries: Any = await self.client.xrange(self.keys.stream)
        read = [
            from_payload(decode_payload(fields[b"data"], max_bytes=10**7), entry_id=entry_id.decode())
            for entry_id, fields in entries
        ]
        return [(envelope.id, envelope.attempt) for envelope in read]

    async def pending(self, group: str = "processor") -> int:
        reply: Any = await self.client.xpending(self.keys.stream, group)
        return int(reply["pending"])

    async def waiting(self) -> int:
        return int(await self.client.zcard(self.keys.delayed))

    async def dead(self) -> int:
        return int(await self.client.xlen(self.keys.dead))

    async def calls(self, command: str) -> int:
        stats: Any = await self.client.info("commandstats")
        return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


@pytest.fixture
def place(client: RawAsyncRedis, keys: Keys) -> Place:
    return Place(client, keys)
