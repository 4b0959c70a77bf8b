"""The cost of tracing that is installed and sampled out: engine and processor with a no-op handler, with and without.

    python benchmarks/otel.py [--quick]

A private redis-server is started. Each run is a process of its own that handles n messages; runs with and without
tracing alternate. Tracing is ``instrument()`` with a provider whose sampler keeps no trace, and every message carries
the context of a sender that was sampled out too, as in a service whose traces are all dropped. Besides the rate, the
processor time for each message is compared, which other programs on the machine disturb less. Medians of ratios.
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STREAM = "bench"
DROPPED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}
MODES = ("without", "sampled out")


def install(mode: str) -> None:
    """Install tracing according to the mode."""
    if mode == "without":
        return
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    from conquiet.otel import instrument

    instrument(tracer_provider=TracerProvider(sampler=ParentBasedTraceIdRatio(0.0)))


class Clock:
    """Times n calls, in seconds of the wall and of the processor."""

    def __init__(self, n: int) -> None:
        self.n, self.seen = n, 0
        self.done = asyncio.Event()
        self.wall = self.cpu = 0.0

    def tick(self) -> None:
        """Count one call."""
        if self.seen == 0:
            gc.collect()  # else only the runs with tracing collect garbage among the SDK's imported objects
            gc.freeze()
            self.wall, self.cpu = time.perf_counter(), time.process_time()
        self.seen += 1
        if self.seen == self.n:
            self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
            self.done.set()


async def engine(client: Any, clock: Clock) -> None:
    """Consume with the runtime's engine."""
    from conquiet.runtime import Consumer

    async def handle(message: Any, ctx: Any) -> None:  # noqa: ARG001 - does nothing
        clock.tick()

    async with Consumer(streams=[STREAM], redis=client, handler=handle, concurrency=100):
        await clock.done.wait()


async def processor(client: Any, clock: Clock) -> None:
    """Consume with a processor."""
    from conquiet.processor import Processor

    made = Processor(client, [STREAM], concurrency=100)

    @made.handler("paid")
    async def handle(ctx: Any) -> None:  # noqa: ARG001 - does nothing
        clock.tick()

    async with made:
        await clock.done.wait()


ROLES = {"engine": engine, "processor": processor}


async def fill(client: Any, role: str, n: int) -> None:
    """Put n messages into the stream."""
    from conquiet.processor import NewMessage, Processor

    await client.flushall()
    emitter = Processor(client, [STREAM])
    for start in range(0, n, 500):
        if role == "engine":
            pipeline = client.pipeline(transaction=False)
            for number in range(start, min(start + 500, n)):
                pipeline.xadd(STREAM, {"data": json.dumps({"order": number})})
            await pipeline.execute()
        else:
            some = range(start, min(start + 500, n))
            await emitter.emit_many(NewMessage("paid", {"order": number}, headers=DROPPED) for number in some)
    await client.xgroup_create(STREAM, "processor", "0-0", mkstream=True)


async def play(role: str, mode: str, url: str, n: int) -> None:
    """Be one run: fill the stream, handle everything, print what it took."""
    import redis.asyncio

    client: Any = redis.asyncio.Redis.from_url(url)
    await fill(client, role, n)
    install(mode)
    clock = Clock(n)
    await ROLES[role](client, clock)
    await client.aclose()
    print(json.dumps({"rate": (n - 1) / clock.wall, "cpu_us": clock.cpu / n * 1e6}))


def run(role: str, mode: str, url: str, n: int) -> dict[str, float]:
    """Run one process."""
    words = [sys.executable, __file__, "--role", role, "--mode", mode, "--url", url, "--n", str(n)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Compare both modes of both roles."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--role", choices=ROLES)
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--url")
    parser.add_argument("--n", type=int, default=40_000)
    given = parser.parse_args()
    if given.mode is not None:
        asyncio.run(play(given.role, given.mode, given.url, given.n))
        return
    from conquiet.testing import RedisServer

    n, rounds = (20_000, 5) if given.quick else (given.n, 11)
    with RedisServer() as server:
        for role in (given.role,) if given.role else ROLES:
            ratios: dict[str, list[float]] = {"rate": [], "cpu_us": []}
            runs = []
            for number in range(rounds):
                order = MODES if number % 2 else MODES[::-1]
                found = {mode: run(role, mode, server.url, n) for mode in order}
                runs.append(found)
                ratios["rate"].append(found["sampled out"]["rate"] / found["without"]["rate"])
                ratios["cpu_us"].append(found["without"]["cpu_us"] / found["sampled out"]["cpu_us"])
            shown = {
                mode: {each: round(statistics.median(one[mode][each] for one in runs), 1) for each in ratios}
                for mode in MODES
            }
            print(f"{role}, {n} messages, {rounds} rounds, load {os.getloadavg()[0]:.1f}: {shown}")
            for each, values in ratios.items():
                print(f"  {each}: {statistics.median(values):.3f} of without ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
