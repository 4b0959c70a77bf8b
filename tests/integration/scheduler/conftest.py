"""Schedulers on one real Redis, with virtual time on request, and the messages they fired."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from conquiet.scheduler import Every, ScheduleEntry, Scheduler
from conquiet.scheduler.entries import When
from conquiet.testing import wait_until_async

START = 1_800_000_000_000  # a round moment of virtual time, in January 2027


class Stage:
    """Shared helpers. ``now`` is virtual time in ms for schedulers made with ``virtual()``."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.redis = redis.asyncio.Redis.from_url(url)
        self.stream = f"{prefix}jobs"
        self.group = f"{prefix}hosts"
        self.now = START
        self._opened: list[Scheduler] = []
        self._running: list[asyncio.Task[None]] = []

    def entry(self, name: str = "beat", when: When | None = None, **settings: Any) -> ScheduleEntry:
        stream = settings.pop("stream", self.stream)
        return ScheduleEntry(name, when or Every(10), settings.pop("event", "beat"), stream, **settings)

    def virtual(self, *entries: ScheduleEntry, **settings: Any) -> Scheduler:
        """A scheduler to be driven by ``tick()`` in virtual time; it stores its entries at its first ``run()``."""
        return self.real(*entries, now_ms=lambda: self.now, **settings)

    def real(self, *entries: ScheduleEntry, **settings: Any) -> Scheduler:
        client = redis.asyncio.Redis.from_url(settings.pop("url", self.url))
        scheduler = Scheduler(client, entries, group=settings.pop("group", self.group), **settings)
        self._opened.append(scheduler)
        return scheduler

    async def started(self, *entries: ScheduleEntry, **settings: Any) -> Scheduler:
        """A virtual scheduler that has stored its entries, as ``run()`` does first."""
        scheduler = self.virtual(*entries, **settings)
        await scheduler._firer.store_declared()
        return scheduler

    def run(self, scheduler: Scheduler) -> asyncio.Task[None]:
        task = asyncio.create_task(scheduler.start())
        self._running.append(task)
        return task

    async def at(self, seconds: float, *schedulers: Scheduler) -> list[int]:
        """Set virtual time to this many seconds past START, tick, and return the due times fired so far, from START."""
        self.now = START + round(seconds * 1_000)
        for scheduler in schedulers:
            await scheduler.tick()
        return await self.dues()

    async def messages(self, stream: str | None = None) -> list[tuple[int, dict[str, Any]]]:
        """Server time of each entry, and its envelope."""
        entries: Any = await self.redis.xrange(stream or self.stream)
        return [(int(entry_id.split(b"-")[0]), json.loads(fields[b"data"])) for entry_id, fields in entries]

    async def ids(self, stream: str | None = None) -> list[str]:
        return [envelope["id"] for _, envelope in await self.messages(stream)]

    async def dues(self, name: str | None = None) -> list[int]:
        """Due times fired, in seconds from START (virtual time only)."""
        split = [fire_id.rsplit("@", 1) for fire_id in await self.ids()]
        return [(int(due) - START) // 1_000 for owner, due in split if name in {None, owner}]

    async def wait_for(self, count: int, timeout_s: float = 180.0) -> list[str]:
        async def enough() -> list[str]:
            ids = await self.ids()
            return ids if len(ids) >= count else []

        return await wait_until_async(enough, timeout_s=timeout_s, message=f"{count} fires")

    async def close(self) -> None:
        for scheduler in self._opened:
            scheduler.stop()
        await asyncio.gather(*self._running, return_exceptions=True)
        for scheduler in self._opened:
            await scheduler.close()
        await self.redis.aclose()


@pytest.fixture
async def stage(redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    stage = Stage(redis_url, key_prefix)
    yield stage
    await stage.close()
