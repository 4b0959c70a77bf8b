"""A message that kills its process, among others that do nothing wrong, on Redis and with the real delivery cap.

Everything the killed process held is claimed again, and each claim counts a delivery. The process is started again each
time, as a supervisor would: by a program that imports everything once and forks. None of the others is dead-lettered or
stuck.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.invariants.histories import History, Row, redis_facts

from conquiet.processor import SyncEmitter
from conquiet.testing import wait_until

KILLER = 13
TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"

RUNTIME = """
import asyncio, logging, os, signal, sys
import redis.asyncio
from conquiet.runtime import Consumer
from tests.invariants import wire
from tests.invariants.recorder import Recorder
while child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
url, path, stream, concurrency, name, history = sys.argv[1:]
record = Recorder(history)
record.watch(0.025)
wire.note_stream_acks(record, lambda messages: [message.data["number"] for message in messages])
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
logging.disable(logging.CRITICAL)
async def handler(message, ctx):
    number = message.data["number"]
    record("deliver", id=number, n=message.delivery_count)
    if number == 13:
        record("fault", kind="kill -9", target=os.getpid(), point="in the handler")
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(0.005)
    os.write(log, b"%d\\n" % number)
    record("commit", id=number)
async def exhausted(message, ctx):
    os.write(log, b"%d\\n" % -message.data["number"])
    await ctx.ack()
asyncio.run(Consumer(streams=[stream], redis=redis.asyncio.Redis.from_url(url), handler=handler, on_exhausted=exhausted,
    concurrency=int(concurrency), consumer_id=name or None, claim_idle_ms=100).start())
"""

PROCESSOR = """
import asyncio, logging, os, signal, sys
import redis.asyncio
from conquiet.processor import Processor
from conquiet.runtime import RuntimeSettings
from tests.invariants import wire
from tests.invariants.recorder import Recorder
while child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
url, path, stream, concurrency, name, history = sys.argv[1:]
record = Recorder(history)
record.watch(0.025)
wire.note_stream_acks(record, lambda messages: [message.data["data"]["number"] for message in messages])
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
logging.disable(logging.CRITICAL)
processor = Processor(redis.asyncio.Redis.from_url(url), streams=[stream], concurrency=int(concurrency),
    consumer_id=name or None, runtime=RuntimeSettings(claim_idle_ms=100))
@processor.handler("work")
async def work(ctx):
    number = ctx.data["number"]
    record("deliver", id=number, n=ctx.attempt)
    if number == 13:
        record("fault", kind="kill -9", target=os.getpid(), point="in the handler")
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(0.005)
    os.write(log, b"%d\\n" % number)
    record("commit", id=number)
asyncio.run(processor.start())
"""


# Every engine, every concurrency and both kinds of names; all combinations at full size.
SMALL = [("runtime", 10, 50, ""), ("processor", 1, 50, "same"), ("processor", 50, 200, "")]
ALL = [
    (engine, concurrency, innocents, name)
    for engine in ("runtime", "processor")
    for concurrency, innocents in ((1, 50), (10, 50), (50, 200))
    for name in ("", "same")
]


@pytest.mark.parametrize(("engine", "concurrency", "innocents", "name"), ALL if TORTURE else SMALL)
def test_the_delivery_cap_ends_the_killer_and_no_other(
    redis_url: str,
    key_prefix: str,
    tmp_path: Path,
    engine: str,
    concurrency: int,
    innocents: int,
    name: str,
    new_history: Callable[..., History],
) -> None:
    stream, log, ends = f"{key_prefix}work", tmp_path / "handled", tmp_path / "ends"
    client: Any = redis.Redis.from_url(redis_url)
    who = "runtime.Consumer" if engine == "runtime" else "Processor"
    history = new_history(
        f"killing message in {engine} {concurrency}{' same name' if name else ''}",
        Row(f"{who}, a message that kills its process", "none", f"one Redis, concurrency {concurrency}"),
        seed=0,
        promise={"effects": "at least once", "attempts": True, "commits": True},
        servers=[redis_facts(client)],
        claim_idle_s=0.1,
    )
    for n in range(innocents):
        history.record("enqueue", id=n, expect="dead" if n == KILLER else "effect")
    with SyncEmitter(client, stream) as emitter:
        for n in range(innocents):
            if engine == "processor":
                emitter.emit("work", {"number": n})
            else:
                client.xadd(stream, {"data": json.dumps({"number": n})})
    script = RUNTIME if engine == "runtime" else PROCESSOR
    command = [sys.executable, "-c", script, redis_url, str(log), stream, str(concurrency), name, str(history.folder)]
    with ends.open("wb") as output:
        forker = subprocess.Popen(command, stdout=output, start_new_session=True)

    def handled() -> list[int]:
        return [int(line) for line in log.read_bytes().split()] if log.exists() else []

    def dead() -> int:
        return int(client.xlen(f"{{{stream}}}:dead")) if engine == "processor" else sum(n < 0 for n in handled())

    def kills() -> int:
        found = ends.read_text().split()
        assert set(found) <= {"-9"}
        return len(found)

    def killer_is_dead() -> bool:
        assert forker.poll() is None
        kills()  # each end was a kill
        return dead() == 1

    def story() -> str:
        return f"{len(handled())} handled, {kills()} kills"

    try:
        wait_until(killer_is_dead, timeout_s=300, interval_s=0.02, message=story)
        history.recovery()
        wait_until(lambda: len({n for n in handled() if n >= 0}) == innocents - 1, interval_s=0.02, message=story)
        wait_until(lambda: client.xpending(stream, "processor")["pending"] == 0)
        history.record("drained")
    finally:
        os.killpg(forker.pid, signal.SIGKILL)  # with the process that it forked last
        forker.wait()

    print(f"{engine}, concurrency {concurrency}: {kills()} kills, {dead()} dead, {innocents - 1} handled")  # noqa: T201
    assert {n for n in handled() if n >= 0} == set(range(innocents)) - {KILLER}
    assert [n for n in handled() if n < 0] == ([-KILLER] if engine == "runtime" else [])
    assert dead() == 1
    assert kills() == 20
    history.record("state", effects=[n for n in handled() if n >= 0], dead=[KILLER] * dead())
    history.record("state", left={"pending": client.xpending(stream, "processor")["pending"]})
    assert history.judge()["examples"] == {}
    client.close()
