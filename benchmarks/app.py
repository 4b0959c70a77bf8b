"""The cost of ``App``: an app with a typed payload compared with a bare ``Processor`` and its peers, interleaved.

    make bench-peers                                   # once; see benchmarks/README.md
    python benchmarks/app.py [--quick] [--only NAMES]

A private redis-server is started. Each contender is a process of its own that handles a backlog with a no-op handler;
the clock runs from the first to the last handled message. The last lines are the ratios to the bare processor: median,
lowest and highest over rounds in which every contender had a turn, each compared with the processor of its own round.
CPU seconds of the process count as well: on a busy machine they say more than the rate.
"""

import argparse
import asyncio
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import redis.asyncio
from processor_parts import ours
from processor_parts.common import Clock, say
from processor_parts.peers import PEERS, quiet

ROOT = Path(__file__).resolve().parents[1]
BENCH_PYTHON = ROOT / ".cache" / "bench-venv" / "bin" / "python"
PYTHON = str(BENCH_PYTHON) if BENCH_PYTHON.exists() else sys.executable
BASE = "bare processor, c100"
GOAL = 0.85
COMPARED = ("taskiq", "dramatiq", "docket", "streaq")


class Order(msgspec.Struct):
    order: int
    amount: float


@dataclass
class OrderData:
    order: int
    amount: float


async def app(url: str, n: int, *, model: Any) -> None:
    from conquiet import App

    shop = App("s", redis=url, stream="s", group="processor", concurrency=100)
    clock = Clock(n, shop.stop)

    async def work(order: Any) -> None:  # noqa: ARG001 - the payload
        clock.tick()

    work.__annotations__["order"] = _pydantic() if model == "pydantic" else model
    shop.handler("work")(work)
    await shop.run(["handlers"])
    clock.report()


def _pydantic() -> Any:
    library: Any = import_module("pydantic")
    return library.create_model("OrderModel", order=(int, ...), amount=(float, ...))


async def faststream(url: str, n: int) -> None:
    library: Any = import_module("faststream.redis")
    broker = library.RedisBroker(url, logger=None)
    application: Any = import_module("faststream").FastStream(broker, logger=None)
    clock = Clock(n, application.exit)

    async def work(order: Any) -> None:  # noqa: ARG001 - the payload
        clock.tick()

    work.__annotations__["order"] = _pydantic()
    source = library.StreamSub("s", group="processor", consumer="c", max_records=100, polling_interval=1000)
    broker.subscriber(stream=source)(work)
    await application.run()
    clock.report()


async def faststream_fill(url: str, n: int) -> None:
    library: Any = import_module("faststream.redis")
    async with redis.asyncio.Redis.from_url(url) as client:
        # FastStream makes its group at the end of the stream, behind what is there.
        await client.xgroup_create("s", "processor", "0", mkstream=True)
    async with library.RedisBroker(url, logger=None) as broker:
        for _ in range(n):
            await broker.publish({"order": 12345, "amount": 19.99}, stream="s")


# name: (consume, fill, share of n, module it needs)
CONTENDERS: dict[str, tuple[Callable[..., Any], Callable[..., Any], int, str | None]] = {
    BASE: (ours.processor, ours.fill, 1, None),
    "App, msgspec struct": (partial(app, model=Order), ours.fill, 1, None),
    "App, dataclass": (partial(app, model=OrderData), ours.fill, 1, None),
    "App, dict": (partial(app, model=dict), ours.fill, 1, None),
    "App, pydantic model": (partial(app, model="pydantic"), ours.fill, 1, "pydantic"),
    "FastStream, pydantic model": (faststream, faststream_fill, 20, "faststream"),
    **{
        name: (partial(play, mode="plain", filling=False), partial(play, mode="plain", filling=True), 20, module)
        for name, (play, module, _) in PEERS.items()
        if name.startswith(COMPARED)
    },
}


def child(role: str, name: str, url: str, n: int) -> dict[str, float]:
    words = [PYTHON, __file__, "--role", role, "--only", name, "--url", url, "--n", str(n)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=170, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or (role == "run" and not lines):
        raise SystemExit(f"{name}: {role} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, float] = {}
    for line in lines if role == "run" else []:
        found |= json.loads(line)
    return found


def play(role: str, name: str, url: str, n: int) -> None:
    """Be one contender."""
    quiet()
    run, fill, *_ = CONTENDERS[name]
    outcome = (fill if role == "fill" else run)(url, n)
    if inspect.isawaitable(outcome):
        asyncio.run(outcome)  # type: ignore[arg-type]
    say(cpu_s=time.process_time())


def has(name: str, module: str | None) -> bool:
    if (
        module is None
        or not subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True, check=False).returncode
    ):
        return True
    print(f"{name}: not installed, left out (make bench-peers)", flush=True)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer messages and rounds")
    parser.add_argument("--only", default="", help="contenders whose name contains one of these, divided by |")
    parser.add_argument("--rounds", type=int, help="turns of each contender")
    parser.add_argument("--role", choices=["run", "fill"], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--n", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role:
        play(given.role, given.only, given.url, given.n)
        return

    import redis

    from conquiet.testing import RedisServer

    n = 20_000 if given.quick else 60_000
    rounds = given.rounds or (3 if given.quick else 5)
    wanted = given.only.split("|")
    names = [
        name
        for name, (_, _, _, module) in CONTENDERS.items()
        if (name == BASE or any(word in name for word in wanted)) and has(name, module)
    ]
    rates: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    print(f"load before: {os.getloadavg()[0]:.1f}", flush=True)
    with RedisServer() as server, redis.Redis.from_url(server.url) as client:
        for _ in range(rounds):
            for name in names:
                client.flushall()
                count = n // CONTENDERS[name][2]
                child("fill", name, server.url, count)
                found = child("run", name, server.url, count)
                rates[name].append(found["rate"])
                if "cpu_s" in found:  # a peer that has to be ended at once reports none
                    cpu[name].append(1e6 * found["cpu_s"] / count)
    print(f"\n{'handled and acknowledged':<32}{'per s':>10}{'CPU µs each':>13}   of {BASE}: median (lowest to highest)")
    for name in names:
        ratios = [rate / base for rate, base in zip(rates[name], rates[BASE], strict=True)]
        cost = f"{statistics.median(cpu[name]):>13.1f}" if cpu[name] else f"{'-':>13}"
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{name:<32}{statistics.median(rates[name]):>10,.0f}{cost}   {spread}", flush=True)
    print(f"goal for a typed payload: at least {GOAL} of {BASE}")


if __name__ == "__main__":
    main()
