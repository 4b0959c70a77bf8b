"""The processor beside the bare engine, raw redis-py and its peers: one process each, one run, interleaved.

    python -m venv .cache/bench-venv
    .cache/bench-venv/bin/pip install 'redis[hiredis]' msgspec prometheus-client
    .cache/bench-venv/bin/pip install taskiq-redis 'dramatiq[redis]' streaq arq
    python benchmarks/processor.py [--quick]

Contenders run in the interpreter of ``.cache/bench-venv``; without it in ours, and peers that are not installed are
left out. A private redis-server is started. The clock runs from the first to the last handled message (or around the
emits), so that imports and start-up do not count. Rates are medians over rounds in which everybody had a turn.
"""

# ruff: noqa: ARG001 - handlers take what libraries hand them

import argparse
import asyncio
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BENCH_PYTHON = ROOT / ".cache" / "bench-venv" / "bin" / "python"
PYTHON = str(BENCH_PYTHON) if BENCH_PYTHON.exists() else sys.executable
DATA = {"order": 12345, "amount": 19.99, "currency": "EUR"}
ENVELOPE = (
    b'{"v":1,"event":"work","id":"%d","attempt":1,"emitted_ms":1763244000000,"data":{"order":12345,"amount":19.99}}'
)


class Clock:
    """Times n calls from the first to the last."""

    def __init__(self, n: int, done: Callable[[], Any]) -> None:
        self.n, self.seen, self.done = n, 0, done
        self.began = self.ended = 0.0

    def tick(self) -> None:
        if self.seen == 0:
            self.began = time.perf_counter()
        self.seen += 1
        if self.seen == self.n:
            self.ended = time.perf_counter()
            self.done()

    def report(self) -> None:
        say(rate=(self.n - 1) / (self.ended - self.began))


def say(**facts: float) -> None:
    print(json.dumps(facts))


def connect(url: str) -> Any:
    import redis.asyncio

    return redis.asyncio.Redis.from_url(url)


# ---------------------------------------------------------------- processing a backlog
async def fill(url: str, n: int) -> None:
    client = connect(url)
    await client.xgroup_create("s", "processor", "0", mkstream=True)
    for start in range(0, n, 1_000):
        pipe = client.pipeline(transaction=False)
        for number in range(start, min(start + 1_000, n)):
            pipe.xadd("s", {"data": ENVELOPE % number})
        await pipe.execute()
    await client.aclose()


async def engine(url: str, n: int) -> None:
    from conquiet.runtime import Consumer

    client = connect(url)
    clock = Clock(n, lambda: consumer.stop())  # noqa: PLW0108 - it does not exist yet

    async def handler(message: Any, ctx: Any) -> None:
        clock.tick()

    consumer = Consumer(streams=["s"], redis=client, handler=handler, concurrency=100)
    await consumer.start()
    clock.report()
    await client.aclose()


async def processor(url: str, n: int, *, handler_options: dict[str, Any] | None = None, **settings: Any) -> None:
    from conquiet.processor import Processor, ProcessorSettings

    client = connect(url)
    ours = Processor(client, ["s"], concurrency=100, settings=ProcessorSettings(**settings))
    clock = Clock(n, ours.stop)

    @ours.handler("work", **(handler_options or {}))
    async def work(ctx: Any) -> None:
        clock.tick()

    await ours.start()
    clock.report()
    await ours.close()
    await client.aclose()


async def retries(url: str, n: int) -> None:
    """Every message fails once and succeeds at its second attempt: n first attempts, n retries, n second ones."""
    from conquiet.processor import Processor, RetryPolicy

    client = connect(url)
    ours = Processor(client, ["s"], concurrency=100)
    clock = Clock(2 * n, ours.stop)

    @ours.handler("work", retry=RetryPolicy.fixed(0.05, max_attempts=2))
    async def work(ctx: Any) -> None:
        clock.tick()
        if ctx.attempt == 1:
            raise ConnectionError

    await ours.start()
    say(rate=n / (clock.ended - clock.began))
    await ours.close()
    await client.aclose()


async def delayed_fill(url: str, n: int) -> None:
    from conquiet.processor import Emitter, NewMessage
    from conquiet.queue.client import clone_async

    client = connect(url)
    own = clone_async(client)
    at = time.time() + 1.0 + n / 20_000
    await Emitter(own, "s").emit_many([NewMessage("work", DATA, at=at) for _ in range(n)])
    await client.xgroup_create("s", "processor", "0", mkstream=True)
    await asyncio.sleep(max(0.0, at - time.time()))
    await own.aclose()
    await client.aclose()


# ---------------------------------------------------------------- emitting
async def emit_one(url: str, n: int, **options: Any) -> None:
    from conquiet.processor import Emitter
    from conquiet.queue.client import clone_async

    client = connect(url)
    own = clone_async(client)
    emitter = Emitter(own, "s")
    await emitter.emit("work", DATA)
    began = time.perf_counter()
    for number in range(n):
        await emitter.emit("work", DATA, **({"id": f"m{number}"} if "id" in options else options))
    say(rate=n / (time.perf_counter() - began))
    await own.aclose()
    await client.aclose()


async def emit_many(url: str, n: int, **options: Any) -> None:
    from conquiet.processor import Emitter, NewMessage
    from conquiet.queue.client import clone_async

    client = connect(url)
    own = clone_async(client)
    emitter = Emitter(own, "s")
    await emitter.emit("work", DATA)
    began = time.perf_counter()
    for start in range(0, n, 5_000):
        many = [
            NewMessage("work", DATA, f"m{number}" if "id" in options else None, options.get("delay"))
            for number in range(start, min(start + 5_000, n))
        ]
        await emitter.emit_many(many)
    say(rate=n / (time.perf_counter() - began))
    await own.aclose()
    await client.aclose()


async def raw_pipeline(url: str, n: int) -> None:
    client = connect(url)
    await client.xadd("s", {"data": "{}"})
    began = time.perf_counter()
    for start in range(0, n, 500):
        pipe = client.pipeline(transaction=False)
        for number in range(start, min(start + 500, n)):
            payload = {"v": 1, "event": "work", "id": str(number), "attempt": 1, "emitted_ms": 1, "data": DATA}
            pipe.xadd("s", {"data": json.dumps(payload)})
        await pipe.execute()
    say(rate=n / (time.perf_counter() - began))
    await client.aclose()


async def raw_one(url: str, n: int) -> None:
    client = connect(url)
    began = time.perf_counter()
    for number in range(n):
        payload = {"v": 1, "event": "work", "id": str(number), "attempt": 1, "emitted_ms": 1, "data": DATA}
        await client.xadd("s", {"data": json.dumps(payload)})
    say(rate=n / (time.perf_counter() - began))
    await client.aclose()


# ---------------------------------------------------------------- delays at rest, and the cost of waiting
async def lateness(url: str, n: int) -> None:
    """Messages due at odd moments while nothing else happens: how late do their handlers start?"""
    from conquiet.processor import Processor

    client = connect(url)
    ours = Processor(client, ["s"], concurrency=10)
    late: list[float] = []

    @ours.handler("work")
    async def work(ctx: Any) -> None:
        late.append((time.time() - ctx.data["due"]) * 1000)

    async with ours:
        for number in range(n):
            emitted = await ours.emit(
                "work", {"due": time.time() + 0.3 + 0.037 * (number % 7)}, delay=0.3 + 0.037 * (number % 7)
            )
            assert emitted.due_ms
            await asyncio.sleep(0.02)
        while len(late) < n:  # noqa: ASYNC110 - polling is good enough here
            await asyncio.sleep(0.01)
        before = await client.info("commandstats")
        await asyncio.sleep(5)
        after = await client.info("commandstats")
    late.sort()
    calls = {
        name: sum(int(stats[f"cmdstat_{name}"]["calls"]) for stats in (after,) if f"cmdstat_{name}" in stats)
        - sum(int(stats[f"cmdstat_{name}"]["calls"]) for stats in (before,) if f"cmdstat_{name}" in stats)
        for name in ("evalsha", "xread", "xreadgroup")
    }
    say(p50=late[n // 2], p99=late[int(n * 0.99)], most=late[-1], **{f"idle_{k}": v / 5 for k, v in calls.items()})
    await client.aclose()


# ---------------------------------------------------------------- peers
def peer(module: str) -> Any:
    """Import what is not in the lock file."""
    return importlib.import_module(module)


async def taskiq(url: str, n: int, *, filling: bool = False) -> None:
    run_receiver_task = peer("taskiq.api").run_receiver_task
    broker = peer("taskiq_redis").RedisStreamBroker(url, queue_name="s", xread_count=100)
    finished = asyncio.Event()
    clock = Clock(n, finished.set)

    async def work_with(order: int) -> None:
        clock.tick()

    work = broker.task(task_name="work")(work_with)

    await broker.startup()
    if filling:
        for _ in range(n):
            await work.kiq(1)
    else:
        receiver = asyncio.create_task(run_receiver_task(broker, max_async_tasks=100))
        await finished.wait()
        assert not receiver.done()
        clock.report()
        sys.stdout.flush()
        os._exit(0)  # its receiver does not always end when it is cancelled
    await broker.shutdown()


def dramatiq(url: str, n: int, *, filling: bool = False) -> None:
    import threading

    library = peer("dramatiq")
    broker = peer("dramatiq.brokers.redis").RedisBroker(url=url)
    library.set_broker(broker)
    finished = threading.Event()
    clock = Clock(n, finished.set)

    def work_with(order: int) -> None:
        clock.tick()

    work = library.actor(queue_name="s")(work_with)

    if filling:
        for _ in range(n):
            work.send(1)
        return
    worker = library.Worker(broker, worker_threads=8)
    worker.start()
    finished.wait()
    clock.report()
    worker.stop()


async def arq(url: str, n: int, *, filling: bool = False) -> None:
    library = peer("arq")
    where = peer("arq.connections").RedisSettings.from_dsn(url)
    if filling:
        pool = await library.create_pool(where)
        for _ in range(n):
            await pool.enqueue_job("work", 1)
        await pool.aclose()
        return
    clock = Clock(n, lambda: None)

    async def work(ctx: Any, order: int) -> None:
        clock.tick()

    worker = peer("arq.worker").Worker(
        [library.func(work, name="work")],
        redis_settings=where,
        burst=True,
        max_jobs=100,
        poll_delay=0.01,
        handle_signals=False,
    )
    await worker.async_run()
    clock.report()
    await worker.close()


async def streaq(url: str, n: int, *, filling: bool = False) -> None:
    worker = peer("streaq").Worker(redis_url=url, concurrency=100, handle_signals=False)
    clock = Clock(n, lambda: scope.cancel())  # noqa: PLW0108 - the same

    async def work_with(order: int) -> None:
        clock.tick()

    work = worker.task(name="work")(work_with)

    if filling:
        async with worker:
            for start in range(0, n, 500):
                await worker.enqueue_many([work.enqueue(1) for _ in range(min(500, n - start))])
        return
    scope = asyncio.create_task(worker.run_async())
    await asyncio.gather(scope, return_exceptions=True)
    clock.report()


PROCESS: dict[str, tuple[Callable[..., Any], Callable[..., Any], int, str | None]] = {
    # name: (consume, fill, share of n, module it needs)
    "bare engine, c100": (engine, fill, 1, None),
    "processor, c100": (processor, fill, 1, None),
    "processor, a timeout on the handler": (
        lambda url, n: processor(url, n, handler_options={"timeout": 30}),
        fill,
        1,
        None,
    ),
    "processor, job states kept": (lambda url, n: processor(url, n, job_ttl_s=60), fill, 4, None),
    "processor, each message retried once": (retries, fill, 4, None),
    "processor, all messages due at once": (processor, delayed_fill, 2, None),
    "taskiq, c100": (taskiq, lambda url, n: taskiq(url, n, filling=True), 20, "taskiq_redis"),
    "dramatiq, 8 threads": (dramatiq, lambda url, n: dramatiq(url, n, filling=True), 20, "dramatiq"),
    "arq, c100": (arq, lambda url, n: arq(url, n, filling=True), 20, "arq"),
    "streaq, c100": (streaq, lambda url, n: streaq(url, n, filling=True), 20, "streaq"),
}
EMIT: dict[str, tuple[Callable[..., Any], int]] = {
    "raw redis-py asyncio, pipelines of 500": (raw_pipeline, 1),
    "emit_many": (emit_many, 1),
    "emit_many, each with an id of its own": (lambda url, n: emit_many(url, n, id=True), 1),
    "emit_many, delayed": (lambda url, n: emit_many(url, n, delay=600), 1),
    "raw redis-py asyncio, one by one": (raw_one, 10),
    "emit": (emit_one, 10),
    "emit, with an id": (lambda url, n: emit_one(url, n, id=True), 10),
    "emit, delayed": (lambda url, n: emit_one(url, n, delay=600), 10),
}


# ---------------------------------------------------------------- the referee
def child(role: str, name: str, url: str, n: int) -> dict[str, float]:
    words = [PYTHON, __file__, "--role", role, "--name", name, "--url", url, "--n", str(n)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or (role != "fill" and not lines):
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(lines[-1]) if role != "fill" else {}
    return found


def has(module: str | None) -> bool:
    return (
        module is None
        or not subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True, check=False).returncode
    )


def play(role: str, name: str, url: str, n: int) -> None:
    """Be one contender."""
    if role == "fill":
        outcome = PROCESS[name][1](url, n)
    elif role == "run":
        outcome = PROCESS[name][0](url, n)
    elif role == "emit":
        outcome = EMIT[name][0](url, n)
    else:
        outcome = lateness(url, n)
    if outcome is not None:
        asyncio.run(outcome)


def table(title: str, rates: dict[str, list[float]], base: str) -> None:
    print(f"\n{title:<48}{'per s':>10}   of {base}")
    reference = statistics.median(rates.get(base) or [1.0])
    for name, values in rates.items():
        rate = statistics.median(values)
        print(f"{name:<48}{rate:>10,.0f}{rate / reference:>9.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer messages and rounds")
    parser.add_argument("--only", default="", help="contenders whose name contains this")
    parser.add_argument("--role", choices=["run", "fill", "emit", "lateness"])
    parser.add_argument("--name", default="")
    parser.add_argument("--url")
    parser.add_argument("--n", type=int)
    given = parser.parse_args()
    if given.role:
        play(given.role, given.name, given.url, given.n)
        return

    import redis

    from conquiet.testing import RedisServer

    n, rounds = (20_000, 2) if given.quick else (60_000, 3)
    with RedisServer() as server, redis.Redis.from_url(server.url) as client:
        for phase in (processing, emitting, waiting):
            phase(client, server.url, n, rounds, given.only)


def processing(client: Any, url: str, n: int, rounds: int, only: str) -> None:
    names = [name for name, (_, _, _, module) in PROCESS.items() if only in name and has(module)]
    rates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            client.flushall()
            count = n // PROCESS[name][2]
            child("fill", name, url, count)
            rates[name].append(child("run", name, url, count)["rate"])
    table("handled and acknowledged", rates, "bare engine, c100")
    peers = {name: statistics.median(rates[name]) for name in names if PROCESS[name][3]}
    if peers and "processor, c100" in rates:
        best = max(peers, key=lambda name: peers[name])
        ours = statistics.median(rates["processor, c100"])
        print(f"the processor handles {ours / peers[best]:.1f} x what {best} does, the fastest peer here", flush=True)


def emitting(client: Any, url: str, n: int, rounds: int, only: str) -> None:
    names = [name for name in EMIT if only in name]
    rates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            client.flushall()
            rates[name].append(child("emit", name, url, n // EMIT[name][1])["rate"])
    table("emitted", rates, "raw redis-py asyncio, pipelines of 500")


def waiting(client: Any, url: str, n: int, rounds: int, only: str) -> None:
    client.flushall()
    late = child("lateness", "", url, n // 400)
    numbers = f"p50 {late['p50']:.1f}, p99 {late['p99']:.1f}, at most {late['most']:.1f} ms"
    print(f"\ndelayed messages at rest start late by {numbers}")
    idle = ", ".join(f"{late[f'idle_{name}']:.1f} {name}" for name in ("evalsha", "xread", "xreadgroup"))
    print(f"commands per second of one idle host: {idle}")


if __name__ == "__main__":
    main()
