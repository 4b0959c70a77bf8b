"""The emitter without asyncio: the same bytes, the same promises, the same errors."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from tests.redis_clients import RawAsyncRedis

from conquiet import SyncEmitter
from conquiet.errors import (
    ConfigurationError,
    JobCancelledError,
    JobFailedError,
    JobTimeoutError,
    PayloadError,
    QueueError,
)
from conquiet.management import JobAdmin
from conquiet.processor import JobContext, JobState, NewMessage, Processor, ProcessorSettings
from conquiet.processor.keys import Keys
from conquiet.testing import FaultProxy, wait_until_async


@pytest.fixture
def emitter(redis_url: str, stream: str) -> Iterator[SyncEmitter]:
    with redis.Redis.from_url(redis_url) as client, SyncEmitter(client, stream) as own:
        yield own


async def test_a_processor_handles_what_a_plain_function_emits(
    make_processor: Callable[..., Processor], emitter: SyncEmitter, client: RawAsyncRedis, stream: str
) -> None:
    processor = make_processor(max_attempts_limit=4)
    seen: list[Any] = []

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        seen.append((ctx.id, ctx.data, ctx.max_attempts))

    sent = emitter.emit("pay", {"n": 1}, id="one", max_attempts=4)
    assert (sent.id, sent.stream, sent.duplicate, sent.due_ms) == ("one", stream, False, None)
    assert emitter.emit("pay", {"n": 1}, id="one").duplicate
    later = emitter.emit("pay", {"n": 2}, id="two", delay_s=0.1)
    assert later.due_ms is not None
    async with processor:
        await wait_until_async(lambda: len(seen) == 2)

    assert sorted(seen) == [("one", {"n": 1}, 4), ("two", {"n": 2}, 1)]


async def test_both_emitters_write_the_same_bytes(
    make_processor: Callable[..., Processor], emitter: SyncEmitter, client: RawAsyncRedis, stream: str
) -> None:
    """But for the moment of emitting."""
    messages = [NewMessage("pay", {"ü": [1, None]}, id="a"), NewMessage("pay", id="b", max_attempts=3)]
    emitter.emit_many(messages, stream=f"{stream}-sync")
    await make_processor().emit_many(messages, stream=f"{stream}-async")

    written = []
    for name in (f"{stream}-sync", f"{stream}-async"):
        entries = await client.xrange(name)
        written.append([_without_time(fields[b"data"]) for _, fields in entries])
    assert written[0] == written[1]
    assert len(written[0]) == 2


def test_of_a_burst_only_the_last_message_waits(emitter: SyncEmitter, redis_url: str, keys: Keys) -> None:
    for number in range(3):
        emitter.emit("index", {"n": number}, delay_s=60, debounce="page-1")

    with redis.Redis.from_url(redis_url) as client:
        (waiting,) = client.zrange(keys.delayed, 0, -1)
    assert b'"n":2' in waiting


def test_one_emitter_serves_many_threads_and_an_id_is_still_emitted_once(
    emitter: SyncEmitter, redis_url: str, stream: str
) -> None:
    sent: list[bool] = []

    def emit() -> None:
        sent.extend(emitter.emit("pay", id=f"order-{number}").duplicate for number in range(20))

    threads = [threading.Thread(target=emit) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(sent), sent.count(False)) == (100, 20)
    with redis.Redis.from_url(redis_url) as client:
        assert client.xlen(stream) == 20


def test_the_scripts_come_back_after_the_server_forgot_them(emitter: SyncEmitter, redis_url: str) -> None:
    emitter.emit("pay")
    with redis.Redis.from_url(redis_url) as client:
        client.script_flush()

    assert emitter.emit("pay").entry_id is not None


def test_contradictory_arguments_are_refused_before_anything_is_sent(
    emitter: SyncEmitter, redis_url: str, stream: str
) -> None:
    with pytest.raises(ConfigurationError):
        emitter.emit("pay", delay_s=1, at=2)
    with pytest.raises(ConfigurationError, match="debounce"):
        emitter.emit("pay", debounce="x")
    with pytest.raises(PayloadError, match="at bad") as caught:
        emitter.emit_many([NewMessage("pay"), NewMessage("pay", {"bad": float("nan")})])
    assert caught.value.path == "bad"

    with redis.Redis.from_url(redis_url) as client:
        assert client.xlen(stream) == 0


def test_a_lost_reply_is_in_doubt_and_an_id_makes_repeating_safe(
    redis_url: str, stream: str, fault_proxy: Callable[[str], FaultProxy]
) -> None:
    proxy = fault_proxy(redis_url)
    with redis.Redis.from_url(proxy.url_for(redis_url)) as client, SyncEmitter(client, stream) as emitter:
        emitter.emit("pay", id="first")  # the script is known from here on
        proxy.drop_next_reply()
        with pytest.raises(QueueError) as caught:
            emitter.emit("pay", {"card": "4111"}, id="m")
        again = emitter.emit("pay", {"card": "4111"}, id="m")

    assert caught.value.in_doubt
    assert "4111" not in str(caught.value)
    assert again.duplicate


async def test_a_lost_reply_after_noscript_is_in_doubt(
    make_processor: Callable[..., Processor],
    client: RawAsyncRedis,
    redis_url: str,
    stream: str,
    fault_proxy: Callable[[str], FaultProxy],
) -> None:
    """The whole text is sent after NOSCRIPT. That refusal is about the digest, not about this text."""
    proxy = fault_proxy(redis_url)
    url = proxy.url_for(redis_url)
    pair = [NewMessage("pay"), NewMessage("pay")]
    processor = make_processor(url=url)

    await client.script_flush()
    proxy.drop_next_reply(b"\nEVAL\r")
    with pytest.raises(QueueError) as caught:
        await processor.emit_many(pair)
    assert caught.value.in_doubt
    assert await client.xlen(stream) == 2

    await client.script_flush()
    proxy.drop_next_reply(b"\nEVAL\r")
    with redis.Redis.from_url(url) as own, SyncEmitter(own, stream) as emitter, pytest.raises(QueueError) as caught:
        emitter.emit_many(pair)
    assert caught.value.in_doubt
    assert await client.xlen(stream) == 4


async def test_states_of_new_jobs_are_kept_if_they_are_kept_at_all(
    make_processor: Callable[..., Processor], redis_url: str, stream: str
) -> None:
    jobs = make_processor(job_ttl_s=60).jobs
    settings = ProcessorSettings(job_ttl_s=60)
    with redis.Redis.from_url(redis_url) as client, SyncEmitter(client, stream, settings) as emitter:
        emitter.emit_many([NewMessage("pay", id="now"), NewMessage("pay", id="later", delay_s=60)])

    counts = await jobs.count(stream)
    assert {state: count for state, count in counts.items() if count} == {JobState.WAITING: 1, JobState.DELAYED: 1}


def test_a_state_that_cannot_be_written_fails_no_emit(redis_url: str, stream: str, keys: Keys) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set(keys.jobs("waiting"), "in the way")
        with SyncEmitter(client, stream, ProcessorSettings(job_ttl_s=60)) as emitter:
            assert emitter.emit("pay").entry_id is not None


def _without_time(payload: bytes) -> bytes:
    before, _, rest = payload.partition(b'"emitted_ms":')
    return before + rest.lstrip(b"0123456789")


async def test_a_thread_waits_for_what_the_handler_returns(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, stream: str
) -> None:
    processor = make_processor()

    @processor.handler("add")
    async def add(ctx: JobContext) -> int:
        await ctx.progress(0.5, "adding")
        return int(ctx.data["a"]) + 1

    @processor.handler("dies")
    async def dies(_: JobContext) -> None:
        raise LookupError("DE02")

    with SyncEmitter(client, stream) as emitter:
        async with processor:
            found = await asyncio.to_thread(emitter.emit_and_wait, "add", {"a": 1}, id="m", timeout_s=60)
            again = await asyncio.to_thread(emitter.job("m").result, timeout_s=60)
            progress = await asyncio.to_thread(emitter.job("m").progress)
            nothing = await asyncio.to_thread(emitter.job("other").progress)
            with pytest.raises(JobFailedError, match="is dead: LookupError"):
                await asyncio.to_thread(emitter.emit_and_wait, "dies", timeout_s=60)
            with pytest.raises(JobTimeoutError, match="has not ended within 0 s"):
                await asyncio.to_thread(emitter.job("nowhere").result, timeout_s=0)
            await asyncio.to_thread(emitter.emit_many, [NewMessage("add", id="later", delay_s=600, keep_result_s=60)])
            await JobAdmin(client, stream).cancel("later")
            with pytest.raises(JobCancelledError):
                await asyncio.to_thread(emitter.job("later").result, timeout_s=60)

    assert (found, again, nothing) == (2, 2, None)
    assert progress is not None
    assert progress.fraction == 0.5
