"""The statements of docs/runtime.md about handlers that hold the interpreter lock or block the event loop."""

import asyncio
import re
import sys
import time
from collections.abc import Callable

import pytest
from tests.integration.runtime.conftest import Enqueue, MakeEngine, Run
from tests.redis_clients import RawRedis

from conquiet.runtime import MessageContext, RuntimeMessage
from conquiet.testing import wait_until_async

CLAIM_IDLE_MS = 600
HELD_S = 3 * CLAIM_IDLE_MS / 1000

OBSERVER = """
import sys, redis
client, stream, most = redis.Redis.from_url(sys.argv[1], protocol=2), sys.argv[2], 0
print("ready", flush=True)
while not client.exists(stream + ":done"):
    for row in client.xpending_range(stream, "processor", "-", "+", 1):
        most = max(most, row["time_since_delivered"])
print(most, flush=True)
"""


def hold_interpreter_lock() -> None:
    """Match a regular expression that takes twice as long with each further letter, in one call of long enough."""
    for dead_letters in range(18, 60):
        began = time.monotonic()
        re.match(r"(a+)+$", "a" * dead_letters + "b")
        if time.monotonic() - began > HELD_S:
            return


def block_event_loop() -> None:
    time.sleep(HELD_S)


@pytest.mark.parametrize(("work", "goes_stale"), [(hold_interpreter_lock, True), (block_event_loop, False)])
async def test_a_lease_outlives_a_blocked_loop_but_not_a_held_interpreter_lock(
    make_engine: MakeEngine,
    run: Run,
    enqueue: Enqueue,
    raw: RawRedis,
    redis_url: str,
    stream: str,
    work: Callable[[], None],
    goes_stale: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """The longest idle time of the entry is measured by another process."""
    raw.xgroup_create(stream, "processor", "0", mkstream=True)
    command = [sys.executable, "-c", OBSERVER, redis_url, stream]
    observer = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert observer.stdout is not None
    assert await observer.stdout.readline() == b"ready\n"
    enqueue(1)
    done = False

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        nonlocal done
        work()
        done = True

    running = run(make_engine(handler, claim_idle_ms=CLAIM_IDLE_MS))
    await wait_until_async(lambda: done)
    raw.set(f"{stream}:done", 1)
    idle_ms = int((await asyncio.wait_for(observer.communicate(), 20))[0])
    await running.stop()

    assert (idle_ms > CLAIM_IDLE_MS) is goes_stale
