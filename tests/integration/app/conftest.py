"""The places an application runs in: in memory, and on real servers."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pytest
import redis.asyncio
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, select
from sqlalchemy.engine import Engine

from conquiet.app import App, AppSettings, TestApp
from conquiet.processor import DeadRecord, JobHandle, ProcessorSettings, Progress
from conquiet.processor.keys import keys_of
from conquiet.testing import wait_until_async
from conquiet.testing.discovery import available_mysql_flavours
from conquiet.testing.shared import SharedServers

METADATA = MetaData()
LEDGER = Table(
    "ledger",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("order_id", String(40), nullable=False),
)


class Running(Protocol):
    """An application that runs."""

    async def deliver(self, event: str, data: Mapping[str, Any], *, message_id: str) -> None:
        """Deliver a message as it is, unchecked."""
        ...

    async def settle(self) -> None:
        """Return when all that was emitted is done or dead."""
        ...

    async def dead_letters(self) -> list[DeadRecord]:
        """Return the dead letters, oldest first."""
        ...

    async def progress(self, job_id: str) -> Progress | None:
        """Return what the handler of a job has reported last."""
        ...

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return when a condition is true."""
        ...

    async def emit_and_wait(self, event: str) -> Any:
        """Emit a message and return what its handler returns."""
        ...


class InMemory:
    """``TestApp``."""

    def __init__(self, app: TestApp) -> None:
        self._app = app
        self.deliver = app.deliver
        self.emit_and_wait = app.emit_and_wait

    async def settle(self) -> None:
        await self._app.drain()
        self._app.clock.advance(3_600)
        await self._app.drain()

    async def dead_letters(self) -> list[DeadRecord]:
        return self._app.dead_letters

    async def progress(self, job_id: str) -> Progress | None:
        return self._app.progress(job_id)

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        await self._app.drain()
        assert condition()


class OnServers:
    """Redis and a database."""

    def __init__(self, app: App, redis_url: str, engine: Engine) -> None:
        self._keys = keys_of(app.assembly.stream)
        self._group = app.assembly.group
        self._client = redis.asyncio.Redis.from_url(redis_url)
        self._engine = engine
        self.emit_and_wait = app.emit_and_wait

    async def deliver(self, event: str, data: Mapping[str, Any], *, message_id: str) -> None:
        envelope = {"v": 1, "event": event, "id": message_id, "data": data}
        await self._client.xadd(self._keys.stream, {"data": json.dumps(envelope)})

    async def settle(self) -> None:
        await wait_until_async(self._is_quiet, message="everything is settled")

    async def _is_quiet(self) -> bool:
        """Return whether nothing waits: neither in Redis nor in the outbox, nor on its way from one to the other."""
        before = await self._settled_up_to()
        with self._engine.connect() as connection:
            if connection.exec_driver_sql("SELECT COUNT(*) FROM conquiet_outbox").scalar_one():
                return False
        # A row that was relayed since the first look is a newer entry.
        return before is not None and before == await self._settled_up_to()

    async def _settled_up_to(self) -> bytes | None:
        """Return the newest id if everything up to it is settled. One step: a retry goes from the stream and back."""
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.zcard(self._keys.delayed)
            pipe.xinfo_groups(self._keys.stream)
            pipe.xinfo_stream(self._keys.stream)
            delayed, groups, about = await pipe.execute()
        last: bytes = about["last-generated-id"]
        is_settled = not delayed and all(row["last-delivered-id"] == last and not row["pending"] for row in groups)
        return last if is_settled else None

    async def dead_letters(self) -> list[DeadRecord]:
        from conquiet.processor import DeadLetters

        return [dead.record for dead in (await DeadLetters(self._client, self._keys.stream).list()).items]

    async def progress(self, job_id: str) -> Progress | None:
        return await JobHandle(self._client, self._keys.stream, job_id).progress()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        await wait_until_async(condition, message="the condition is true")

    async def close(self) -> None:
        await self._client.aclose()


@dataclass
class Place:
    """The environment of an application in a test."""

    in_memory: bool
    redis_url: str | None
    db_url: str
    name: str
    engine: Engine

    def app(self, **processor: Any) -> App:
        settings = AppSettings(processor=ProcessorSettings(**processor), relay_poll_s=0.02)
        redis_url = self.redis_url or "redis://127.0.0.1:1/0"
        return App(self.name, redis=redis_url, database=self.db_url, settings=settings)

    def booked(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(select(LEDGER.c.order_id).order_by(LEDGER.c.id)).scalars())

    @asynccontextmanager
    async def _on_servers(self, app: App) -> AsyncIterator[Running]:
        assert self.redis_url is not None
        await asyncio.to_thread(app.create_tables)
        servers = OnServers(app, self.redis_url, self.engine)
        try:
            async with app:
                yield servers
        finally:
            await servers.close()

    @asynccontextmanager
    async def _in_memory(self, app: App) -> AsyncIterator[Running]:
        async with TestApp(app) as test_app:
            yield InMemory(test_app)

    def running(self, app: App) -> AbstractAsyncContextManager[Running]:
        return self._in_memory(app) if self.in_memory else self._on_servers(app)


@pytest.fixture
def mariadb_url(conquiet_servers: SharedServers) -> Iterator[str]:
    server = conquiet_servers.mysql(available_mysql_flavours()[0])
    name = f"conquiet_test_{uuid4().hex[:12]}"
    server.ensure_running()
    yield server.create_database(name)
    server.drop_database(name)


@pytest.fixture(params=["memory and sqlite", "redis and sqlite", "redis and mariadb", "redis and postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path, key_prefix: str) -> Iterator[Place]:
    broker, _, database = request.param.split()
    redis_url: str | None = request.getfixturevalue("redis_url") if broker == "redis" else None
    db_url: str = (
        f"sqlite:///{tmp_path / 'shop.db'}" if database == "sqlite" else request.getfixturevalue(f"{database}_url")
    )
    engine = create_engine(db_url)
    METADATA.create_all(engine)
    yield Place(broker == "memory", redis_url, db_url, f"{key_prefix}shop", engine)
    engine.dispose()
