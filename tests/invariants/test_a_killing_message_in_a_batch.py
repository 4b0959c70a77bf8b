"""A message that kills its process, in batches with harmless messages: only the killing message is dead-lettered.

Each delivery halves the batch that a message may be in, so the killer is alone after a few kills; past the delivery cap
it is dead-lettered. The process is started again each time, as a supervisor would.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.invariants.histories import History, Row, redis_facts

from conquiet.processor import NewMessage, SyncEmitter
from conquiet.testing import wait_until

KILLER = 13
INNOCENTS = 40

WORKER = """
import asyncio, logging, os, signal, sys
import redis.asyncio
from conquiet.processor import Processor, ProcessorSettings
from conquiet.runtime import RuntimeSettings
from tests.invariants import wire
from tests.invariants.recorder import Recorder
url, path, stream, concurrency, history = sys.argv[1:]
record = Recorder(history)
record.watch(0.025)
wire.note_stream_acks(record, lambda messages: [message.data["data"]["number"] for message in messages])
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
logging.disable(logging.CRITICAL)
processor = Processor(redis.asyncio.Redis.from_url(url), streams=[stream], concurrency=int(concurrency),
    settings=ProcessorSettings(retention=None), runtime=RuntimeSettings(claim_idle_ms=100, max_deliveries=6))
@processor.handler("work", batch=32, within_s=0.05)
async def work(contexts):
    numbers = [ctx.data["number"] for ctx in contexts]
    record("deliver", ids=numbers)
    if 13 in numbers:
        os.write(log, b"batch %d\\n" % len(numbers))
        record("fault", kind="kill -9", target=os.getpid(), point="in the handler")
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(log, b"".join(b"done %d\\n" % number for number in numbers))
    record("commit", ids=numbers)
asyncio.run(processor.start())
"""


@pytest.mark.timeout(240)
def test_a_killer_in_a_batch_takes_no_neighbour_along(
    redis_url: str, key_prefix: str, tmp_path: Path, new_history: Callable[..., History]
) -> None:
    stream, log = f"{key_prefix}work", tmp_path / "log"
    client: Any = redis.Redis.from_url(redis_url)
    history = new_history(
        "killing message in a batch",
        Row("Processor, batches, a message that kills its process", "none", "one Redis, concurrency 2"),
        seed=0,
        promise={"effects": "at least once", "commits": True},
        servers=[redis_facts(client)],
        claim_idle_s=0.1,
    )
    for number in range(INNOCENTS + 1):
        history.record("enqueue", id=number, expect="dead" if number == KILLER else "effect")
    with SyncEmitter(client, stream) as emitter:
        emitter.emit_many([NewMessage("work", {"number": number}) for number in range(INNOCENTS + 1)])
    command = [sys.executable, "-c", WORKER, redis_url, str(log), stream, "2", str(history.folder)]
    worker = subprocess.Popen(command)

    def lines(kind: str) -> list[int]:
        found = log.read_text().splitlines() if log.exists() else []
        return [int(line.split()[1]) for line in found if line.startswith(kind)]

    def killer_is_dead() -> bool:
        nonlocal worker
        if worker.poll() is not None:
            assert worker.returncode == -9
            worker = subprocess.Popen(command)
        return int(client.xlen(f"{{{stream}}}:dead")) == 1

    def story() -> str:
        return f"batches of the killer: {lines('batch')}"

    try:
        wait_until(killer_is_dead, timeout_s=200, interval_s=0.05, message=story)
        history.recovery()
        wait_until(lambda: len(set(lines("done"))) == INNOCENTS, message=story)
        wait_until(lambda: client.xpending(stream, "processor")["pending"] == 0)
        history.record("drained")
    finally:
        worker.kill()
        worker.wait()

    sizes = lines("batch")
    dead = int(client.xlen(f"{{{stream}}}:dead"))
    history.record("state", effects=lines("done"), dead=[KILLER] * dead, leaked=history.leaks())
    history.record("state", left={"pending": client.xpending(stream, "processor")["pending"]})
    assert history.judge()["examples"] == {}
    client.close()
    assert set(lines("done")) == set(range(INNOCENTS + 1)) - {KILLER}
    assert len(sizes) <= 6  # the delivery cap; a delivery also counts if the process dies before it is run
    assert sizes[0] > 16
    assert sizes[-1] == 1
    assert sizes == sorted(sizes, reverse=True)
