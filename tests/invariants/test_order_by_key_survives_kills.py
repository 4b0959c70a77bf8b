"""kill -9 around every step of a turn: effects of each key are 1..n, strictly increasing.

Ten kills here; ``CONQUIET_TORTURE=1`` makes it a hundred.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from tests.invariants.histories import History, Row, redis_facts
from tests.invariants.ordered_zygote import POINTS

from conquiet.processor import Emitter, NewMessage
from conquiet.processor.keys import Keys, keys_of
from conquiet.redis_transport.client import clone_async
from conquiet.testing import wait_until_async

TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
KILLS = 100 if TORTURE else 10
ACCOUNTS = 20
BATCH = 10


class Producer:
    """Emits 1, 2, 3… to every account while there are kills to come."""

    def __init__(self, client: Any, keys: Keys, history: History) -> None:
        self.client = client
        self.history = history
        self.keys = keys
        self.accounts = [f"account-{number}" for number in range(ACCOUNTS)]
        self.emitted = 0
        self._emitter = Emitter(client, keys.stream)

    async def emit(self) -> None:
        numbers = range(self.emitted + 1, self.emitted + BATCH + 1)
        messages = [NewMessage("pay", {"n": number}, key=account) for number in numbers for account in self.accounts]
        for number in numbers:
            for account in self.accounts:
                self.history.record("enqueue", id=f"{account}/{number}", key=account)
        await self._emitter.emit_many(messages)
        self.emitted += BATCH

    async def waiting(self) -> int:
        return int(await self.client.zcard(self.keys.waiting_keys))

    async def effects(self, account: str) -> list[int]:
        return [int(one) for one in await self.client.lrange(f"{self.keys.stream}:effects:{account}", 0, -1)]

    async def is_done(self) -> bool:
        lengths = [await self.client.llen(f"{self.keys.stream}:effects:{account}") for account in self.accounts]
        return bool(min(lengths) >= self.emitted and await self.client.hlen(self.keys.order) <= 2)


async def test_effects_of_a_key_are_strictly_increasing_under_kills(
    redis_url: str, key_prefix: str, tmp_path: Path, new_history: Callable[..., History]
) -> None:
    with contextlib.closing(redis.Redis.from_url(redis_url, decode_responses=True)) as plain:
        facts = redis_facts(plain)
    history = new_history(
        "order by key under kills",
        Row("Processor: order by key", "none", "one Redis, 3 processes"),
        seed=0,
        promise={"effects": "once", "attempts": True, "order": {"": "enqueue"}, "commits": True},
        servers=[facts],
        claim_idle_s=0.25,
        points=dict.fromkeys(POINTS, 1) if TORTURE else {},
    )
    for point in POINTS:
        history.record("armed", point=point)
    stream = f"{key_prefix}payments"
    own: Any = redis.asyncio.Redis.from_url(redis_url, protocol=2)
    client: Any = clone_async(own)
    producer = Producer(client, keys_of(stream), history)
    diary = tmp_path / "deaths"
    program = str(Path(__file__).with_name("ordered_zygote.py"))
    words = [sys.executable, program, redis_url, stream, str(diary), "3", str(KILLS), str(history.folder)]
    zygote = await asyncio.to_thread(subprocess.Popen, words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert zygote.stdout is not None
    enough = asyncio.create_task(asyncio.to_thread(zygote.stdout.readline))
    try:
        while not enough.done():
            if await producer.waiting() < ACCOUNTS:
                await producer.emit()
            await asyncio.sleep(0.02)
        assert int(enough.result() or 0) == KILLS
        history.recovery()
        await wait_until_async(producer.is_done, timeout_s=120)
        history.record("drained")
    finally:
        await asyncio.to_thread(zygote.communicate, "\n")

    for account in producer.accounts:
        effects = await producer.effects(account)
        history.record("state", effects=[f"{account}/{number}" for number in effects])
        assert effects == list(range(1, producer.emitted + 1))
    assert await client.get(f"{stream}:two") is None  # never two of a key at work
    assert sum(Counter(diary.read_text().splitlines()).values()) >= KILLS
    waiting = await producer.waiting()
    pending = (await client.xpending(stream, "processor"))["pending"]
    history.record("state", left={"waiting keys": waiting, "pending": pending})
    history.record("state", leaked={"processes": history.alive()})
    assert waiting == 0
    assert history.judge()["examples"] == {}
    await client.aclose()
    await own.aclose()
