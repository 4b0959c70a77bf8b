"""Effects that happen exactly once, per second: one by one, in groups, in batches, beside a hand-written loop.

    .venv/bin/python benchmarks/exactly_once.py [--quick] [--database mariadb|postgresql] [--kill]

Redis and the database run on this machine, with fsync on; what the server says about it is printed. Contenders take
turns in rounds; figures are medians of rounds, and only ratios inside one run mean anything. Every contender writes an
inbox row and a row of an effect for each message, and the effects are counted at the end. ``--kill`` runs batches in
processes that are killed with SIGKILL every half a second, and compares the books.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from exactly_once_parts import ours
from exactly_once_parts.by_hand import timed_by_hand
from exactly_once_parts.common import SIZE, World, cores, world_of
from exactly_once_parts.latency import latencies
from exactly_once_parts.poison import transactions_for_poison

WORKER = Path(__file__).parent / "exactly_once_parts" / "kill_worker.py"


def contenders(world: World, *, quick: bool) -> dict[str, Callable[[], float]]:
    """Return what is timed, by name."""
    many, few = (2_000, 200) if quick else (20_000, 1_500)

    def run(prepare: ours.Prepare, count: int, concurrency: int) -> Callable[[], float]:
        return lambda: asyncio.run(ours.timed(world, prepare, count, concurrency=concurrency))

    return {
        "hand-written loop, 200": lambda: timed_by_hand(world, many),
        "one by one": run(ours.one_by_one, few, 1),
        "one by one, concurrency 8": run(ours.one_by_one, few, 8),
        "one by one, async, concurrency 8": run(ours.one_by_one_async, few, 8),
        "group of 50": run(ours.grouped(50), many // 4, 1),
        "batch of 200": run(ours.batched(), many, 1),
        "batch of 200, concurrency 2": run(ours.batched(), many, 2),
        "batch of 200, async": run(ours.batched_async(), many, 1),
    }


def measure(kind: str, *, quick: bool) -> None:
    """Print the table of one database."""
    with world_of(kind) as world:
        print(f"\n{kind}: {world.durable}; {cores()}")
        rates: dict[str, list[float]] = {}
        for _ in range(1 if quick else 3):
            for name, run in contenders(world, quick=quick).items():
                rates.setdefault(name, []).append(run())
        medians = {name: statistics.median(found) for name, found in rates.items()}
        base, hand = medians["one by one"], medians["hand-written loop, 200"]
        for name, rate in medians.items():
            print(f"  {name:<34}{rate:>10,.0f} /s{rate / base:>8.1f} x one by one{rate / hand:>7.2f} of by hand")
        effects, calls, error = asyncio.run(transactions_for_poison(world))
        print(f"  1 poison among {SIZE}: {effects} effects, {calls - 1} transactions more, dead letter: {error}")
        rate = max(20.0, medians["batch of 200"] / 10)
        found = sorted(asyncio.run(latencies(world, rate, seconds=3 if quick else 10)))
        p50, p99 = found[len(found) // 2], found[int(len(found) * 0.99)]
        commit_ms = world.commit_ms()
        print(
            f"  latency at {rate:,.0f} /s: p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms "
            f"(within_s 20 ms, COMMIT {commit_ms:.1f} ms)"
        )


def kill(kind: str, *, quick: bool) -> None:
    """Run two workers that are killed again and again, and compare the books."""
    count, seconds = (4_000, 5.0) if quick else (60_000, 30.0)
    with world_of(kind) as world:
        stream = world.stream()
        world.fill(stream, count)
        settings = json.dumps({"url": world.url, "redis": world.redis_url, "stream": stream, "kind": kind})

        def start() -> "subprocess.Popen[bytes]":
            return subprocess.Popen([sys.executable, str(WORKER), settings])

        workers, kills, began = [start(), start()], 0, time.perf_counter()
        try:
            while world.left(stream) and time.perf_counter() - began < 600:
                time.sleep(0.5)
                if time.perf_counter() - began < seconds:
                    victim = workers.pop(0)
                    os.kill(victim.pid, signal.SIGKILL)
                    victim.wait()
                    kills += 1
                    workers.append(start())
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        took_s = time.perf_counter() - began
        found, different = world.effects(stream)
        print(
            f"\n{kind}, killed {kills} times: {count} messages, {different} effects, {found - different} twice, "
            f"{count - different} lost, {count / took_s:,.0f} /s with the kills"
        )
        assert (found, different) == (count, count), "the books do not agree"


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few messages, one round: to see that it works")
    parser.add_argument("--database", choices=["mariadb", "postgresql"], action="append")
    parser.add_argument("--kill", action="store_true", help="kill the workers, and compare the books")
    arguments = parser.parse_args()
    for kind in arguments.database or ["mariadb", "postgresql"]:
        (kill if arguments.kill else measure)(kind, quick=arguments.quick)


if __name__ == "__main__":
    main()
