"""The processor compared with the bare engine, raw redis-py and its peers: one process each, one run, interleaved.

    make bench-peers                                   # once; see benchmarks/README.md
    python benchmarks/processor.py [--quick] [--phase work|retry|due|emit|rest] [--only NAMES]

A private redis-server is started. The clock runs from the first to the last handled message (or around the emits), so
that imports and start-up do not count. Rates are medians over rounds in which everybody had a turn.
"""

import argparse
import asyncio
import inspect
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from processor_parts import ours
from processor_parts.peers import PEERS, quiet

ROOT = Path(__file__).resolve().parents[1]
BENCH_PYTHON = ROOT / ".cache" / "bench-venv" / "bin" / "python"
PYTHON = str(BENCH_PYTHON) if BENCH_PYTHON.exists() else sys.executable
ARQ_PYTHON = ROOT / ".cache" / "bench-arq" / "bin" / "python"
"""arq wants a redis-py that nobody else wants any more."""

Contender = tuple[Callable[..., Any], Callable[..., Any], int, str | None]


def _peers(mode: str, share: int) -> dict[str, Contender]:
    return {
        name: (partial(play, mode=mode, filling=False), partial(play, mode=mode, filling=True), share, module)
        for name, (play, module, modes) in PEERS.items()
        if mode == "plain" or mode in modes
    }


PHASES: dict[str, tuple[str, str, dict[str, Contender]]] = {
    # title, the contender that peers are compared with, and per name: (consume, fill, share of n, module it needs)
    "work": (
        "handled and acknowledged",
        "processor, c100",
        {
            "bare engine, c100": (ours.engine, ours.fill, 1, None),
            "processor, c100": (ours.processor, ours.fill, 1, None),
            "processor, a timeout on the handler": (
                partial(ours.processor, handler_options={"timeout": 30}),
                ours.fill,
                1,
                None,
            ),
            "processor, job states kept": (partial(ours.processor, job_ttl_s=60), ours.fill, 4, None),
            **_peers("plain", 20),
        },
    ),
    "retry": (
        "failed once and handled at the second attempt",
        "processor, retries",
        {"processor, retries": (ours.retries, ours.fill, 4, None), **_peers("retry", 40)},
    ),
    "due": (
        "handled, all due at one moment",
        "processor, due",
        {"processor, due": (ours.processor, ours.delayed_fill, 2, None), **_peers("due", 40)},
    ),
}
EMIT: dict[str, tuple[Callable[..., Any], int]] = {
    "raw redis-py asyncio, pipelines of 500": (ours.raw_pipeline, 1),
    "emit_many": (ours.emit_many, 1),
    "emit_many, each with an id of its own": (partial(ours.emit_many, id=True), 1),
    "emit_many, delayed": (partial(ours.emit_many, delay_s=600), 1),
    "raw redis-py asyncio, one by one": (ours.raw_one, 10),
    "emit": (ours.emit_one, 10),
    "emit, with an id": (partial(ours.emit_one, id=True), 10),
    "emit, delayed": (partial(ours.emit_one, delay_s=600), 10),
}
Rates = dict[str, list[float]]


# ---------------------------------------------------------------- the referee
def child(role: str, phase: str, name: str, url: str, n: int) -> dict[str, float]:
    words = [python_of(name), __file__, "--role", role, "--phase", phase, "--only", name, "--url", url, "--n", str(n)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or (role != "fill" and not lines):
        raise SystemExit(f"{name}: {role} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(lines[-1]) if lines else {}
    return found


def python_of(name: str) -> str:
    return str(ARQ_PYTHON) if name.startswith("arq") and ARQ_PYTHON.exists() else PYTHON


def wanted(name: str, only: str) -> bool:
    return any(word in name for word in only.split("|"))


def has(name: str, module: str | None) -> bool:
    if module is None:
        return True
    there = not subprocess.run([python_of(name), "-c", f"import {module}"], capture_output=True, check=False).returncode
    if not there:
        print(f"{name}: not installed, left out (make bench-peers)", flush=True)
    return there


OLDEST = {"chasquimq, c100": (8, 6)}
"""Oldest Redis of peers that need a newer one than most servers are: chasquimq 1.3 sends options of XADD from 8.6."""


def runs_on(name: str, client: Any) -> bool:
    found = client.info("server")["redis_version"]
    if tuple(map(int, found.split(".")[:2])) >= OLDEST.get(name, (0, 0)):
        return True
    print(f"{name}: needs Redis {'.'.join(map(str, OLDEST[name]))}, this is {found}; left out", flush=True)
    return False


def play(role: str, phase: str, name: str, url: str, n: int) -> None:
    """Be one contender."""
    quiet()
    if role == "emit":
        outcome = EMIT[name][0](url, n)
    elif role == "rest":
        outcome = ours.lateness(url, n)
    else:
        run, fill, *_ = PHASES[phase][2][name]
        outcome = (fill if role == "fill" else run)(url, n)
    if inspect.isawaitable(outcome):
        asyncio.run(outcome)  # type: ignore[arg-type]


def table(title: str, rates: Rates, base: str) -> None:
    base = base if base in rates else next(iter(rates))
    print(f"\n{title:<48}{'per s':>10}   of {base}")
    reference = statistics.median(rates[base])
    for name, values in rates.items():
        rate = statistics.median(values)
        print(f"{name:<48}{rate:>10,.0f}{rate / reference:>9.2f}", flush=True)


def working(phase: str, client: Any, url: str, n: int, rounds: int, only: str) -> None:
    title, ours_name, contenders = PHASES[phase]
    names = [name for name, (_, _, _, module) in contenders.items() if wanted(name, only) and has(name, module)]
    names = [name for name in names if runs_on(name, client)]
    rates: Rates = {name: [] for name in names}
    enqueued: Rates = {}
    for _ in range(rounds):
        for name in names:
            client.flushall()
            count = n // contenders[name][2]
            filled = child("fill", phase, name, url, count)
            if filled:
                enqueued.setdefault(name, []).append(filled["rate"])
            rates[name].append(child("run", phase, name, url, count)["rate"])
    if not names:
        return
    table(title, rates, next(iter(contenders)))
    peers = {name: statistics.median(rates[name]) for name in names if contenders[name][3]}
    if peers and ours_name in rates:
        best = max(peers, key=lambda name: peers[name])
        times = statistics.median(rates[ours_name]) / peers[best]
        print(f"{ours_name}: {times:.1f} x what {best} does, the fastest peer here", flush=True)
    if enqueued and phase == "work":
        table("enqueued by peers, as their workers found it", enqueued, next(iter(enqueued)))


def emitting(client: Any, url: str, n: int, rounds: int, only: str) -> None:
    names = [name for name in EMIT if wanted(name, only)]
    rates: Rates = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            client.flushall()
            rates[name].append(child("emit", "emit", name, url, n // EMIT[name][1])["rate"])
    for word, base in (("many", "raw redis-py asyncio, pipelines of 500"), ("one", "raw redis-py asyncio, one by one")):
        share = 1 if word == "many" else 10
        these = {name: values for name, values in rates.items() if EMIT[name][1] == share}
        if these:
            table(f"emitted, {word} at a time", these, base)


def resting(client: Any, url: str, n: int) -> None:
    client.flushall()
    late = child("rest", "rest", "", url, n // 400)
    numbers = f"p50 {late['p50']:.1f}, p99 {late['p99']:.1f}, at most {late['most']:.1f} ms"
    print(f"\ndelayed messages at rest start late by {numbers} (n={n // 400})")
    idle = ", ".join(f"{late[f'idle_{name}']:.1f} {name}" for name in ("evalsha", "xread", "xreadgroup"))
    print(f"commands per second of one idle host: {idle}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer messages and rounds")
    parser.add_argument("--only", default="", help="contenders whose name contains one of these, divided by |")
    parser.add_argument("--phase", choices=[*PHASES, "emit", "rest"], help="one phase instead of all")
    parser.add_argument("--rounds", type=int, help="turns of each contender")
    parser.add_argument("--messages", type=int, help="messages of the fastest contenders; slow ones get a share")
    parser.add_argument("--role", choices=["run", "fill", "emit", "rest"], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--n", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role:
        play(given.role, given.phase, given.only, given.url, given.n)
        return

    import redis

    from conquiet.testing import RedisServer

    n = given.messages or (20_000 if given.quick else 60_000)
    rounds = given.rounds or (2 if given.quick else 3)
    print(f"load before: {os.getloadavg()[0]:.1f}", flush=True)
    with RedisServer() as server, redis.Redis.from_url(server.url) as client:
        for phase in PHASES:
            if given.phase in {None, phase}:
                working(phase, client, server.url, n, rounds, given.only)
        if given.phase in {None, "emit"}:
            emitting(client, server.url, n, rounds, given.only)
        if given.phase in {None, "rest"}:
            resting(client, server.url, n)


if __name__ == "__main__":
    main()
