"""One to four processes of ``conquiet worker``: messages without an effect, and effects in batches of 200."""

import os
import subprocess
import sys
import time
from pathlib import Path

from conquiet.processor import NewMessage, SyncEmitter
from exactly_once_parts.common import EVENT, World

PARTS = Path(__file__).resolve().parents[1]


def timed_processes(world: World, event: str, count: int, processes: int) -> float:
    """Return messages per second of a ``conquiet worker``, after its first tenth."""
    stream = world.stream()
    with SyncEmitter(world.client, stream) as emitter:
        for at in range(0, count, 1_000):
            emitter.emit_many(
                [NewMessage(event, {"cents": 1}, id=f"{stream}-{number}") for number in range(at, at + 1_000)]
            )
    environment = {
        **os.environ,
        "PYTHONPATH": str(PARTS),
        "EXACTLY_ONCE_KIND": world.kind,
        "EXACTLY_ONCE_REDIS": world.redis_url,
        "EXACTLY_ONCE_DB": world.url,
        "EXACTLY_ONCE_STREAM": stream,
    }
    words = [sys.executable, "-m", "conquiet.cli", "worker", "exactly_once_parts.worker_app:app"]
    words += ["--only", "handlers", "--processes", str(processes)]
    worker = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 170
        while (left := world.left(stream)) > count * 0.9:
            _require(worker, deadline)
        began, first = time.perf_counter(), left
        while (left := world.left(stream)) > 0:
            _require(worker, deadline)
        took_s = time.perf_counter() - began
    finally:
        worker.terminate()
        try:
            worker.wait(30)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
    if event == EVENT:
        found = world.effects(stream)
        assert found == (count, count), f"{found} effects of {count} messages"
    return first / took_s


def _require(worker: "subprocess.Popen[bytes]", deadline: float) -> None:
    if worker.poll() is not None or time.monotonic() > deadline:
        raise SystemExit(f"conquiet worker did not handle the messages; exit code {worker.returncode}")
    time.sleep(0.005)
