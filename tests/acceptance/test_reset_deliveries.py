"""``conquiet reclaim --reset-deliveries`` brings back what an engine does not run any more."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from conquiet.runtime import Consumer
from conquiet.testing import wait_until

CAP = 2


@pytest.fixture
def stream(client: Redis, key_prefix: str) -> str:
    """Three entries, two of them delivered more often than the cap of the engine allows."""
    key = f"{key_prefix}orders"
    for number in range(3):
        client.xadd(key, {"data": json.dumps({"n": number})})
    client.xgroup_create(key, "billing", "0")
    rows: Any = client.xreadgroup("billing", "alice", {key: ">"}, count=3)
    ids = [entry_id for entry_id, _ in rows[0][1]]
    client.xclaim(key, "billing", "alice", 0, ids[:2], idle=3_600_000, retrycount=CAP + 1, justid=True)
    client.xclaim(key, "billing", "alice", 0, ids[2:], idle=3_600_000, retrycount=CAP, justid=True)
    client.xack(key, "billing", ids[2])
    return key


async def run_engine(redis_url: str, stream: str, until: Callable[[list[int], list[str]], bool]) -> list[int]:
    """Run an engine until a condition of what it handled and of its errors holds."""
    handled: list[int] = []
    errors: list[str] = []

    async def handle(message: Any, _ctx: Any) -> None:
        handled.append(message.data["n"])

    async with AsyncRedis.from_url(redis_url) as redis:
        consumer = Consumer(
            streams=[stream], redis=redis, handler=handle, group="billing", consumer_id="bob",
            max_deliveries=CAP, claim_idle_ms=200, block_ms=50,
        )  # fmt: skip
        consumer.on("error", lambda event: errors.append(type(event.error).__name__))
        async with consumer:
            await asyncio.to_thread(wait_until, lambda: until(handled, errors))
    return handled


def counts(client: Redis, stream: str) -> list[tuple[str, int]]:
    rows: Any = client.xpending_range(stream, "billing", "-", "+", 10)
    return [(row["consumer"], row["times_delivered"]) for row in rows]


def test_messages_beyond_max_deliveries_run_again_after_a_reset(
    invoke: Callable[..., Any], client: Redis, redis_url: str, stream: str
) -> None:
    stuck = asyncio.run(run_engine(redis_url, stream, lambda _, errors: errors.count("DeliveriesExhaustedError") >= 2))
    assert stuck == []
    before = counts(client, stream)
    words = ("reclaim", stream, "billing", "--min-deliveries", str(CAP + 1), "--reset-deliveries")
    env = {"CONQUIET_REDIS_URL": redis_url}

    would = invoke(*words, "--dry-run", env=env)
    assert would.stdout == "2 entries would be reclaimed for conquiet-reclaimed, with their delivery counts at 0\n"
    assert counts(client, stream) == before, "a dry run changes nothing"

    done = invoke(*words, "--json", env=env)
    assert (done.returncode, json.loads(done.stdout)["reset"]) == (0, True)
    assert counts(client, stream) == [("conquiet-reclaimed", 0)] * 2

    handled = asyncio.run(run_engine(redis_url, stream, lambda handled, _: len(handled) == 2))
    assert sorted(handled) == [0, 1]
    assert counts(client, stream) == []


def test_a_reset_for_a_named_owner_makes_the_entries_his(
    invoke: Callable[..., Any], client: Redis, redis_url: str, stream: str
) -> None:
    done = invoke(
        "reclaim", stream, "billing", "--consumer", "alice", "--reset-deliveries", "--to", "carol",
        env={"CONQUIET_REDIS_URL": redis_url},
    )  # fmt: skip

    assert done.stdout == "2 entries reclaimed for carol, with their delivery counts at 0\n"
    assert counts(client, stream) == [("carol", 0)] * 2


def test_without_a_reset_the_counts_stay(
    invoke: Callable[..., Any], client: Redis, redis_url: str, stream: str
) -> None:
    done = invoke("reclaim", stream, "billing", "--consumer", "alice", env={"CONQUIET_REDIS_URL": redis_url})

    assert done.stdout == "2 entries reclaimed for conquiet-reclaimed\n"
    assert counts(client, stream) == [("conquiet-reclaimed", CAP + 1)] * 2
