"""A message that kills its process, in batches with others that do nothing wrong: only that one is dead-lettered.

Each delivery halves the batch that a message may be in, so the killer is alone after a few kills; past the delivery cap
it is dead-lettered. The process is started again each time, as a supervisor would.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from conquiet.processor import NewMessage, SyncEmitter
from conquiet.testing import wait_until

KILLER = 13
INNOCENTS = 40

WORKER = """
import asyncio, logging, os, signal, sys
import redis.asyncio
from conquiet.processor import Processor, ProcessorSettings
from conquiet.runtime import RuntimeSettings
url, path, stream, concurrency = sys.argv[1:]
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
logging.disable(logging.CRITICAL)
processor = Processor(redis.asyncio.Redis.from_url(url), streams=[stream], concurrency=int(concurrency),
    settings=ProcessorSettings(retention=None), runtime=RuntimeSettings(claim_idle_ms=100, max_deliveries=6))
@processor.handler("work", batch=32, within_s=0.05)
async def work(contexts):
    numbers = [ctx.data["number"] for ctx in contexts]
    if 13 in numbers:
        os.write(log, b"batch %d\\n" % len(numbers))
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(log, b"".join(b"done %d\\n" % number for number in numbers))
asyncio.run(processor.start())
"""


@pytest.mark.timeout(240)
def test_a_killer_in_a_batch_takes_no_neighbour_along(redis_url: str, key_prefix: str, tmp_path: Path) -> None:
    stream, log = f"{key_prefix}work", tmp_path / "log"
    client: Any = redis.Redis.from_url(redis_url)
    with SyncEmitter(client, stream) as emitter:
        emitter.emit_many([NewMessage("work", {"number": number}) for number in range(INNOCENTS + 1)])
    command = [sys.executable, "-c", WORKER, redis_url, str(log), stream, "2"]
    worker = subprocess.Popen(command)

    def lines(kind: str) -> list[int]:
        found = log.read_text().splitlines() if log.exists() else []
        return [int(line.split()[1]) for line in found if line.startswith(kind)]

    def settled() -> bool:
        nonlocal worker
        if worker.poll() is not None:
            assert worker.returncode == -9
            worker = subprocess.Popen(command)
        return int(client.xlen(f"{{{stream}}}:dead")) == 1 and len(set(lines("done"))) == INNOCENTS

    try:
        wait_until(settled, timeout_s=200, interval_s=0.05, message=lambda: f"batches of the killer: {lines('batch')}")
        wait_until(lambda: client.xpending(stream, "processor")["pending"] == 0, timeout_s=30)
    finally:
        worker.kill()
        worker.wait()

    sizes = lines("batch")
    client.close()
    assert set(lines("done")) == set(range(INNOCENTS + 1)) - {KILLER}
    assert len(sizes) <= 6  # the delivery cap; a delivery also counts if the process dies before it is run
    assert sizes[0] > 16
    assert sizes[-1] == 1
    assert sizes == sorted(sizes, reverse=True)
