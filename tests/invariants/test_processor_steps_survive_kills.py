"""kill -9 in the middle of retries, dead letters and moves: nothing lost, nothing scheduled twice.

A hundred kills here; ``CONQUIET_TORTURE=1`` makes it a thousand.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from conquiet.processor import DeadFilter, DeadLetters, Emitter, NewMessage
from conquiet.processor.envelope import from_payload
from conquiet.processor.keys import keys_of
from conquiet.queue.client import clone_async
from conquiet.queue.codec import decode_fields
from conquiet.testing import wait_until_async

TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
KILLS = 1_000 if TORTURE else 100
BATCH = 20
"""Messages emitted at a time, as long as there are kills to come: there is always something to kill in."""


@pytest.mark.timeout(900 if TORTURE else 120)
async def test_no_kill_loses_or_doubles_a_step(redis_url: str, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    keys = keys_of(stream)
    client: Any = redis.asyncio.Redis.from_url(redis_url, protocol=2)
    own = clone_async(client)
    emitter = Emitter(own, stream)
    words = [sys.executable, str(Path(__file__).with_name("processor_zygote.py")), redis_url, stream, "3", str(KILLS)]
    zygote = await asyncio.to_thread(subprocess.Popen, words, stdout=subprocess.PIPE, text=True)
    assert zygote.stdout is not None
    enough = asyncio.create_task(asyncio.to_thread(zygote.stdout.readline))
    emitted: Counter[str] = Counter()
    try:
        while not enough.done():
            if await client.zcard(keys.delayed) + (await _pending(client, stream)) < 3 * BATCH:
                event = "doomed" if len(emitted) % (3 * BATCH) == 0 else "flaky"
                ids = [f"{event}-{len(emitted) + number}" for number in range(BATCH)]
                await emitter.emit_many([NewMessage(event, id=one, delay=0.01) for one in ids])
                emitted.update(ids)
            await asyncio.sleep(0.02)
        assert enough.result() == "killed enough\n"
        flaky = {one for one in emitted if one.startswith("flaky")}
        doomed = set(emitted) - flaky

        async def settled() -> bool:
            done, dead = await client.scard(f"{stream}:done"), await client.xlen(keys.dead)
            waiting = await client.zcard(keys.delayed) + await _pending(client, stream)
            return bool(done == len(flaky) and dead >= len(doomed) and not waiting)

        await wait_until_async(settled, timeout_s=60)
    finally:
        zygote.send_signal(signal.SIGTERM)
        out, _ = await asyncio.to_thread(zygote.communicate)

    assert int(out.splitlines()[-1]) >= KILLS
    attempts = await _attempts(client, stream)
    # Every attempt of every message was put into the stream exactly once, whoever died over it.
    assert attempts == Counter((one, attempt) for one in emitted for attempt in (1, 2, 3))
    letters = DeadLetters(own, stream)
    dead = Counter([item.record.id async for item in letters._all(DeadFilter())])
    assert dead == Counter(doomed)
    await own.aclose()
    await client.aclose()


async def _pending(client: Any, stream: str) -> int:
    try:
        summary, groups = await client.xpending(stream, "processor"), await client.xinfo_groups(stream)
    except redis.ResponseError:
        return 0
    return int(summary["pending"]) + int(groups[0]["lag"] or 0)


async def _attempts(client: Any, stream: str) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for entry_id, fields in await client.xrange(stream):
        envelope = from_payload(decode_fields(fields, max_bytes=10**6), entry_id=entry_id.decode())
        found[envelope.id, envelope.attempt] += 1
    return found
