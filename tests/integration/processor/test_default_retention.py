"""Everything a processor does, with retention as it is by default: entries go while messages are still on their way.

The other tests of this folder switch retention off, because they count the entries that were ever written.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.redis_clients import RawAsyncRedis

from conquiet.management import JobAdmin, JobChange, JobPhase
from conquiet.processor import DeadFilter, JobContext, NewMessage, Processor, Reject, RetryPolicy
from conquiet.processor.keys import Keys
from conquiet.redis_transport.client import clone_async
from conquiet.testing import wait_until_async


@pytest.fixture
async def processor(client: RawAsyncRedis, stream: str) -> AsyncIterator[Processor]:
    """A processor with the settings that a user gets who sets none."""
    made = Processor(client, [stream], concurrency=8)
    yield made
    await made.close()


@pytest.fixture
async def jobs(client: RawAsyncRedis, stream: str) -> AsyncIterator[JobAdmin]:
    own = clone_async(client)
    yield JobAdmin(own, stream)
    await own.aclose()


def is_long(client: RawAsyncRedis, stream: str, entries: int) -> Callable[[], Any]:
    async def check() -> bool:
        return bool(await client.xlen(stream) == entries)

    return check


async def test_a_retry_outlives_the_entry_of_its_first_attempt(
    processor: Processor, client: RawAsyncRedis, stream: str
) -> None:
    attempts: list[tuple[str, int]] = []

    @processor.handler("pay", retry=RetryPolicy.fixed(1.5, max_attempts=3))
    async def pay(ctx: JobContext) -> None:
        attempts.append((ctx.id, ctx.attempt))
        if ctx.data["fails"] and ctx.attempt < 3:
            raise LookupError

    async with processor:
        await processor.emit_many([NewMessage("pay", {"fails": n == 0}, id=f"m{n}") for n in range(50)])
        await wait_until_async(lambda: len(attempts) >= 50)
        await wait_until_async(is_long(client, stream, 1))  # the first attempt of m0 is gone; m0 waits for its second
        await wait_until_async(lambda: ("m0", 3) in attempts)
        await wait_until_async(is_long(client, stream, 1))

    assert [one for one in attempts if one[0] == "m0"] == [("m0", 1), ("m0", 2), ("m0", 3)]
    assert len(attempts) == 52


async def test_a_delayed_message_runs_in_a_stream_that_was_emptied(
    processor: Processor, client: RawAsyncRedis, stream: str, keys: Keys
) -> None:
    seen: list[str] = []

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        seen.append(ctx.id)

    async with processor:
        await processor.emit("pay", id="late", delay_s=1.5)
        await processor.emit_many([NewMessage("pay", id=f"m{n}") for n in range(50)])
        await wait_until_async(lambda: len(seen) >= 50)
        await wait_until_async(is_long(client, stream, 1))
        await wait_until_async(lambda: "late" in seen)

    assert await client.zcard(keys.delayed) == 0


async def test_a_dead_letter_is_replayed_long_after_its_entry_is_gone(
    processor: Processor, client: RawAsyncRedis, stream: str
) -> None:
    seen: list[tuple[str, int]] = []
    healed = False

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        if not healed:
            raise Reject("the account is closed")
        seen.append((ctx.id, ctx.data["amount"]))

    async with processor:
        await processor.emit_many([NewMessage("pay", {"amount": n}, id=f"m{n}") for n in range(20)])
        dead_letters = processor.dead_letters()

        async def all_dead() -> bool:
            return len((await dead_letters.list(limit=50)).items) == 20

        await wait_until_async(all_dead)
        await wait_until_async(is_long(client, stream, 1))
        healed = True
        await dead_letters.replay(DeadFilter())
        await wait_until_async(lambda: len(seen) == 20)
        await wait_until_async(is_long(client, stream, 1))

    assert sorted(seen) == sorted((f"m{n}", n) for n in range(20))


async def test_the_order_by_key_holds_while_entries_are_removed(
    processor: Processor, client: RawAsyncRedis, stream: str
) -> None:
    effects: dict[str, list[int]] = defaultdict(list)

    @processor.handler("book", retry=RetryPolicy.fixed(0.02, max_attempts=3))
    async def book(ctx: JobContext) -> None:
        if ctx.data["n"] % 7 == 0 and ctx.attempt < 3:
            raise LookupError
        effects[ctx.data["account"]].append(ctx.data["n"])

    async with processor:
        await processor.emit_many(
            [
                NewMessage("book", {"n": n, "account": account}, key=account)
                for n in range(60)
                for account in ("a", "b", "c")
            ]
        )
        await wait_until_async(lambda: sum(map(len, effects.values())) == 180)
        await wait_until_async(is_long(client, stream, 1))

    assert effects == {account: list(range(60)) for account in ("a", "b", "c")}


async def test_jobs_of_a_trimmed_stream_are_listed_moved_and_cancelled(
    processor: Processor, client: RawAsyncRedis, stream: str, jobs: JobAdmin
) -> None:
    seen: list[str] = []

    @processor.handler("pay", retry=RetryPolicy.fixed(600, max_attempts=2))
    async def pay(ctx: JobContext) -> str:
        seen.append(ctx.id)
        if ctx.id == "retried" and ctx.attempt == 1:
            raise LookupError
        return ctx.id

    async with processor:
        await processor.emit("pay", id="retried")
        await processor.emit("pay", id="delayed", delay_s=600)
        await processor.emit("pay", id="wrong", delay_s=600)
        assert await processor.emit_and_wait("pay", id="asked", timeout_s=60) == "asked"

        async def is_retrying() -> bool:
            return [job.id for job in (await jobs.list(JobPhase.RETRYING)).jobs] == ["retried"]

        await wait_until_async(is_retrying)
        await wait_until_async(is_long(client, stream, 1))
        delayed = {job.id for job in (await jobs.list(JobPhase.DELAYED)).jobs}
        cancelled = await jobs.cancel("wrong")
        moved = [await jobs.run_now("delayed"), await jobs.run_now("retried")]
        await wait_until_async(lambda: {"delayed"} <= set(seen) and seen.count("retried") == 2)
        await wait_until_async(is_long(client, stream, 1))
        shown = await jobs.show("wrong")

    assert delayed == {"delayed", "wrong"}
    assert cancelled.change is JobChange.CANCELLED
    assert [one.change for one in moved] == [JobChange.MOVED] * 2
    assert shown.phase is JobPhase.CANCELLED
    assert "wrong" not in seen


async def test_an_entry_goes_only_when_every_group_has_acknowledged_it(
    processor: Processor, client: RawAsyncRedis, stream: str
) -> None:
    """Undelivered to the other group: all stay. Pending there: that one stays. Acknowledged: it goes."""
    seen: list[str] = []
    await client.xgroup_create(stream, "audit", "0-0", mkstream=True)

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        seen.append(ctx.id)

    async def removed() -> int:
        return 300 - int(await client.xlen(stream))

    async with processor:
        await processor.emit_many([NewMessage("pay", id=f"m{n}") for n in range(300)])
        await wait_until_async(lambda: len(seen) == 300)
        (_, entries), *_ = await client.xreadgroup("audit", "one", {stream: ">"}, count=150)
        # Reading half of them proves that a pass has checked the rest: the read ones are removed, no other is.
        held, *done = [entry_id for entry_id, _ in entries]
        await client.xack(stream, "audit", *done[:-1])

        async def passed() -> bool:
            return await removed() == 148  # all that were read, but the pending first one and the last one

        await wait_until_async(passed)
        rest = await client.xreadgroup("audit", "one", {stream: ">"}, count=500)
        await client.xack(stream, "audit", done[-1], *[entry_id for entry_id, _ in rest[0][1]])

        async def only_the_held_one() -> bool:
            return [entry_id for entry_id, _ in await client.xrange(stream)][:1] == [held] and await removed() == 298

        await wait_until_async(only_the_held_one)
        claimed = await client.xclaim(stream, "audit", "two", 0, [held])
        await client.xack(stream, "audit", held)
        await wait_until_async(is_long(client, stream, 1))

    assert len(rest[0][1]) == 150
    assert claimed[0][0] == held
    assert claimed[0][1][b"data"]
