"""The engine compared with raw redis-py and its peers: one process each, one run, interleaved.

    python benchmarks/runtime.py [--quick]

Every contender runs in the interpreter that ``make bench-peers`` made (without it: in ours, and peers that are not
installed are left out). A private redis-server is started. Each message is handed to a no-op handler by itself and
acknowledged; the clock runs from the first to the last handled message, so that imports and start-up do not count. Only
ratios mean something: they are medians over rounds in which every contender had its turn.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BENCH_PYTHON = ROOT / ".cache" / "bench-venv" / "bin" / "python"
PAYLOAD = {"order": 12345, "amount": 19.99, "currency": "EUR", "note": "bench"}


class Clock:
    """Times n calls from the first to the last."""

    def __init__(self, n: int, done: Callable[[], Any]) -> None:
        self.n, self.seen, self.done = n, 0, done
        self.began = self.ended = 0.0
        self.delays: list[float] = []

    def tick(self, sent_at: float | None = None) -> None:
        if self.seen == 0:
            self.began = time.perf_counter()
        if sent_at is not None:
            self.delays.append(time.time() - sent_at)
        self.seen += 1
        if self.seen == self.n:
            self.ended = time.perf_counter()
            self.done()

    def report(self) -> None:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        delays = sorted(self.delays) or [0.0]
        print(
            json.dumps({
                "rate": (self.n - 1) / (self.ended - self.began),
                "rss": memory,
                "p50": delays[len(delays) // 2] * 1000,
                "p99": delays[int(len(delays) * 0.99)] * 1000,
            })
        )  # fmt: skip


# ---------------------------------------------------------------- contenders; each consumes n messages
async def raw_asyncio(url: str, n: int, *, count: int = 100) -> None:
    import redis.asyncio

    client: Any = redis.asyncio.Redis.from_url(url, protocol=2)
    clock = Clock(n, lambda: None)
    print("ready", flush=True)
    while not clock.ended:
        reply = await client.xreadgroup("processor", "c", {"s0": ">"}, count=count, block=1000)
        for _, entries in reply:
            for _, fields in entries:
                clock.tick(json.loads(fields[b"data"]).get("at"))
            await client.xack("s0", "processor", *[entry_id for entry_id, _ in entries])
    clock.report()
    await client.aclose()


def raw_sync(url: str, n: int, *, count: int = 100) -> None:
    import redis

    client: Any = redis.Redis.from_url(url, protocol=2)
    clock = Clock(n, lambda: None)
    print("ready", flush=True)
    while not clock.ended:
        for _, entries in client.xreadgroup("processor", "c", {"s0": ">"}, count=count, block=1000):
            for _, fields in entries:
                clock.tick(json.loads(fields[b"data"]).get("at"))
            client.xack("s0", "processor", *[entry_id for entry_id, _ in entries])
    clock.report()
    client.close()


async def conquiet(url: str, n: int, *, concurrency: int = 100, streams: int = 1) -> None:
    import redis.asyncio

    from conquiet.runtime import Consumer

    client = redis.asyncio.Redis.from_url(url)
    clock = Clock(n, lambda: engine.stop())  # noqa: PLW0108 - there is no engine yet

    async def handler(message: Any, _: Any) -> None:
        clock.tick(message.data.get("at"))

    names = [f"s{number}" for number in range(streams)]
    engine = Consumer(streams=names, redis=client, handler=handler, concurrency=concurrency)
    print("ready", flush=True)
    await engine.start()
    clock.report()
    await client.aclose()


async def faststream(url: str, n: int) -> None:
    library: Any = import_module("faststream.redis")
    broker = library.RedisBroker(url, logger=None)
    app: Any = import_module("faststream").FastStream(broker, logger=None)
    clock = Clock(n, app.exit)

    source = library.StreamSub("s0", group="processor", consumer="c", max_records=100, polling_interval=1000)

    @broker.subscriber(stream=source)  # type: ignore[untyped-decorator]
    async def handle(order: int) -> None:  # noqa: ARG001 - the payload
        clock.tick()

    print("ready", flush=True)
    await app.run()
    clock.report()


async def faststream_fill(url: str, n: int) -> None:
    library: Any = import_module("faststream.redis")
    async with library.RedisBroker(url, logger=None) as broker:
        for _ in range(n):
            await broker.publish(PAYLOAD["order"], stream="s0")


async def taskiq(url: str, n: int, *, fill: bool = False) -> None:
    broker: Any = import_module("taskiq_redis").RedisStreamBroker(
        url, queue_name="s0", xread_count=100, xread_block=200
    )
    finished = asyncio.Event()
    clock = Clock(n, finished.set)

    @broker.task(task_name="work")  # type: ignore[untyped-decorator]
    async def work(order: int) -> None:  # noqa: ARG001 - the payload
        clock.tick()

    await broker.startup()
    if fill:
        for _ in range(n):
            await work.kiq(1)
    else:
        print("ready", flush=True)
        run_receiver: Any = import_module("taskiq.api").run_receiver_task
        receiver = asyncio.create_task(run_receiver(broker, max_async_tasks=100, max_prefetch=100))
        await finished.wait()
        clock.report()
        sys.stdout.flush()
        receiver.cancel()
        os._exit(0)  # its receiver treats a cancellation as a lost connection and begins again
    await broker.shutdown()


def dramatiq(url: str, n: int, *, fill: bool = False) -> None:
    import threading

    library: Any = import_module("dramatiq")
    broker = import_module("dramatiq.brokers.redis").RedisBroker(url=url)
    library.set_broker(broker)
    finished = threading.Event()
    clock = Clock(n, finished.set)

    @library.actor(queue_name="s0")  # type: ignore[untyped-decorator]
    def work(order: int) -> None:  # noqa: ARG001 - the payload
        clock.tick()

    if fill:
        for _ in range(n):
            work.send(1)
        return
    print("ready", flush=True)
    worker = library.Worker(broker, worker_threads=8)
    worker.start()
    finished.wait()
    clock.report()
    worker.stop()


RAW = "raw redis-py asyncio, batches of 100"
CONTENDERS: dict[str, Callable[[str, int], Any]] = {
    RAW: raw_asyncio,
    "raw redis-py sync, batches of 100": raw_sync,
    "raw redis-py asyncio, batches of 100 +uvloop": raw_asyncio,
    "conquiet c100": conquiet,
    "conquiet c100 +uvloop": conquiet,
    "conquiet c1": lambda url, n: conquiet(url, n, concurrency=1),
    "conquiet c1000": lambda url, n: conquiet(url, n, concurrency=1_000),
    "conquiet c100, 100 streams": lambda url, n: conquiet(url, n, streams=100),
    "FastStream per message": faststream,
    "taskiq c100": taskiq,
    "dramatiq 8 threads": dramatiq,
}
FILLERS: dict[str, Callable[[str, int], Any]] = {
    "FastStream per message": faststream_fill,
    "taskiq c100": lambda url, n: taskiq(url, n, fill=True),
    "dramatiq 8 threads": lambda url, n: dramatiq(url, n, fill=True),
}
NEEDS = {"FastStream per message": "faststream", "taskiq c100": "taskiq_redis", "dramatiq 8 threads": "dramatiq"}
LATENCY = {
    "raw blocking read, sync": lambda url, n: raw_sync(url, n, count=1),
    "raw blocking read, asyncio": lambda url, n: raw_asyncio(url, n, count=1),
    "conquiet": lambda url, n: conquiet(url, n, concurrency=10),
    "conquiet +uvloop": lambda url, n: conquiet(url, n, concurrency=10),
}


def perform(what: Callable[[str, int], Any], name: str, url: str, n: int) -> None:
    """Run one contender in this process."""
    outcome: Awaitable[None] | None = what(url, n)
    if outcome is None:
        return
    if name.endswith("+uvloop"):
        import_module("uvloop").run(_await(outcome))
    else:
        asyncio.run(_await(outcome))


async def _await(outcome: Awaitable[None]) -> None:
    await outcome


# ---------------------------------------------------------------- the referee
def spawn(role: str, name: str, url: str, n: int) -> subprocess.Popen[str]:
    python = str(BENCH_PYTHON) if BENCH_PYTHON.exists() else sys.executable
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        [python, __file__, "--role", role, "--name", name, "--url", url, "--n", str(n)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def has(module: str) -> bool:
    python = str(BENCH_PYTHON) if BENCH_PYTHON.exists() else sys.executable
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def result_of(child: subprocess.Popen[str]) -> dict[str, float]:
    out, _ = child.communicate(timeout=300)
    found: dict[str, float] = json.loads(out.strip().splitlines()[-1])
    return found


def fill(client: Any, n: int, streams: int) -> None:
    data = json.dumps(PAYLOAD)
    for number in range(streams):
        client.xgroup_create(f"s{number}", "processor", "0", mkstream=True)
    for start in range(0, n, 1_000):
        pipe = client.pipeline(transaction=False)
        for at in range(start, min(start + 1_000, n)):
            pipe.xadd(f"s{at % streams}", {"data": data})
        pipe.execute()


def throughput(client: Any, url: str, n: int, rounds: int, only: list[str]) -> None:
    names = [name for name in CONTENDERS if name not in NEEDS or has(NEEDS[name])]
    names = [name for name in names if not only or name in {RAW, *only}]
    if not has("uvloop"):
        names = [name for name in names if not name.endswith("+uvloop")]
    rates: dict[str, list[float]] = {name: [] for name in names}
    memory: dict[str, float] = {}
    for _ in range(rounds):
        for name in names:
            client.flushall()
            count = n // 20 if name in FILLERS else n
            if name in FILLERS:
                if name.startswith("FastStream"):
                    client.xgroup_create("s0", "processor", "0", mkstream=True)
                spawn("fill", name, url, count).communicate(timeout=300)
            else:
                fill(client, count, 100 if "100 streams" in name else 1)
            found = result_of(spawn("run", name, url, count))
            rates[name].append(found["rate"])
            memory[name] = max(memory.get(name, 0.0), found["rss"])
    base = statistics.median(rates[RAW])
    print(f"\n{'handled and acknowledged, one handler call per message':<56}{'msg/s':>10}{'of raw':>9}{'RSS MB':>9}")
    for name in names:
        rate = statistics.median(rates[name])
        print(f"{name:<56}{rate:>10,.0f}{rate / base:>9.2f}{memory[name]:>9.0f}")
    peers = [statistics.median(rates[name]) for name in names if name in NEEDS]
    if peers and "conquiet c100" in rates:
        ours = statistics.median(rates["conquiet c100"])
        print(f"conquiet c100 is {ours / max(peers):.1f} x the fastest peer that calls a handler per message")


def latency(client: Any, url: str, seconds: float, rounds: int) -> None:
    names = [name for name in LATENCY if has("uvloop") or not name.endswith("+uvloop")]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    n = int(seconds * 200)
    for _ in range(rounds):
        for name in names:
            client.flushall()
            client.xgroup_create("s0", "processor", "0", mkstream=True)
            child = spawn("latency", name, url, n)
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(0.5)
            next_at = time.perf_counter()
            for _ in range(n):
                client.xadd("s0", {"data": json.dumps({**PAYLOAD, "at": time.time()})})
                next_at += 0.005
                time.sleep(max(0.0, next_at - time.perf_counter()))
            found[name].append(result_of(child))
    print(f"\n{'enqueue to handler at 200 msg/s':<56}{'p50 ms':>10}{'p99 ms':>9}")
    for name in names:
        p50 = statistics.median(one["p50"] for one in found[name])
        p99 = statistics.median(one["p99"] for one in found[name])
        print(f"{name:<56}{p50:>10.2f}{p99:>9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer messages and rounds")
    parser.add_argument("--only", default="", help="these contenders beside raw asyncio, divided by |; no latency")
    parser.add_argument("--rounds", type=int, help="turns of each contender")
    parser.add_argument("--role", choices=["run", "fill", "latency"])
    parser.add_argument("--name")
    parser.add_argument("--url")
    parser.add_argument("--n", type=int)
    options = parser.parse_args()
    if options.role:
        table = {"run": CONTENDERS, "fill": FILLERS, "latency": LATENCY}[options.role]
        perform(table[options.name], options.name, options.url, options.n)
        return
    import redis

    from conquiet.testing import RedisServer

    with RedisServer() as server:
        client = redis.Redis.from_url(server.url)
        rounds = options.rounds or (1 if options.quick else 3)
        only = options.only.split("|") if options.only else []
        throughput(client, server.url, 20_000 if options.quick else 100_000, rounds, only)
        if not only:
            latency(client, server.url, 2 if options.quick else 5, rounds)
        client.close()


if __name__ == "__main__":
    main()
