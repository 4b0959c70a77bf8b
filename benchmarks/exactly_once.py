"""Effects that happen exactly once, per second: one by one, in groups, in batches, compared with a hand-written loop.

    .venv/bin/python benchmarks/exactly_once.py [--quick] [--database mariadb|postgresql] [--only NAMES]
                                                [--peers] [--processes] [--drivers] [--kill]

Redis and the database run on this machine, with fsync on; what the server says about it is printed. Contenders take
turns in rounds; figures are medians of rounds, and only ratios inside one run mean anything. Every contender writes an
inbox row and a row of an effect for each message, and the effects are counted at the end. ``--kill`` runs batches in
processes that are killed with SIGKILL every half a second, and compares the books. ``--peers`` adds other libraries
(``make bench-peers`` installs them), ``--processes`` one to four processes of ``conquiet worker``, ``--drivers``
mysqlclient beside PyMySQL and asyncmy.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from exactly_once_parts import ours
from exactly_once_parts.by_hand import timed_by_hand
from exactly_once_parts.common import EVENT, SIZE, World, cores, world_of
from exactly_once_parts.latency import latencies
from exactly_once_parts.peers import available, timed_peer
from exactly_once_parts.poison import transactions_for_poison
from exactly_once_parts.processes import timed_processes
from sqlalchemy import make_url

BASES = ("one by one", "hand-written loop, 200")
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


def of_drivers(world: World, *, quick: bool) -> dict[str, Callable[[], float]]:
    """Return batches with another driver, by name; PyMySQL and asyncmy are among the contenders."""
    if world.kind != "mariadb":
        return {}
    if importlib.util.find_spec("MySQLdb") is None:
        print("  mysqlclient is not installed, left out (pip install mysqlclient; needs a C compiler)")
        return {}
    prepare = ours.batched(url=world.url.replace("+pymysql", "+mysqldb"))
    count = 2_000 if quick else 20_000
    return {"batch of 200, mysqlclient": lambda: asyncio.run(ours.timed(world, prepare, count))}


def of_peers(world: World, *, quick: bool) -> dict[str, Callable[[], float]]:
    """Return the peers that run here, by name."""
    url = make_url(world.url)
    where = {"host": url.host, "port": url.port, "user": url.username, "database": url.database}
    given = {"n": 200 if quick else 1_500, "kind": world.kind, "redis": world.redis_url, "where": where}
    return {name: partial(timed_peer, name, given) for name in available(world.kind)}


def of_processes(world: World, *, quick: bool) -> dict[str, Callable[[], float]]:
    """Return one to four processes of ``conquiet worker``, by name."""
    effects, nothing = (10_000, 20_000) if quick else (60_000, 200_000)
    found: dict[str, Callable[[], float]] = {}
    for number in range(1, 5):
        found[f"{number} processes, batch of 200"] = partial(timed_processes, world, EVENT, effects, number)
        found[f"{number} processes, no effect"] = partial(timed_processes, world, "nothing", nothing, number)
    return found


def measure(kind: str, arguments: argparse.Namespace) -> None:
    """Print the table of one database."""
    quick = arguments.quick
    with world_of(kind) as world:
        print(f"\n{kind}: {world.durable}; {cores()}")
        runs = contenders(world, quick=quick)
        for wanted, more in ((arguments.drivers, of_drivers), (arguments.peers, of_peers)):
            runs |= more(world, quick=quick) if wanted else {}
        runs |= of_processes(world, quick=quick) if arguments.processes else {}
        words = arguments.only.split("|")
        runs = {name: run for name, run in runs.items() if name in BASES or any(word in name for word in words)}
        rates: dict[str, list[float]] = {}
        for _ in range(arguments.rounds or (1 if quick else 3)):
            for name, run in runs.items():
                rates.setdefault(name, []).append(run())
        medians = {name: statistics.median(found) for name, found in rates.items()}
        one, hand = (medians[name] for name in BASES)
        for name, rate in medians.items():
            print(f"  {name:<34}{rate:>10,.0f} /s{rate / one:>8.1f} x one by one{rate / hand:>7.2f} of by hand")
        if not arguments.only:
            print_details(world, medians["batch of 200"] / 10, seconds=3 if quick else 10)


def print_details(world: World, rate: float, *, seconds: float) -> None:
    """Print what poison costs, and the latency at a tenth of the peak rate."""
    effects, begun, error = asyncio.run(transactions_for_poison(world))
    print(f"  1 poison among {SIZE}: {effects} effects, {begun - 1} transactions more, dead letter: {error}")
    found = sorted(asyncio.run(latencies(world, max(20.0, rate), seconds=seconds)))
    p50, p99 = found[len(found) // 2], found[int(len(found) * 0.99)]
    print(
        f"  latency at {rate:,.0f} /s: p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms "
        f"(within_s 20 ms, COMMIT {world.commit_ms():.1f} ms)"
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
    parser.add_argument("--only", default="", help="contenders whose name contains one of these, divided by |")
    parser.add_argument("--rounds", type=int, help="turns of each contender")
    parser.add_argument("--peers", action="store_true", help="other libraries, too (make bench-peers)")
    parser.add_argument("--processes", action="store_true", help="1 to 4 processes of 'conquiet worker', too")
    parser.add_argument("--drivers", action="store_true", help="mysqlclient, too")
    arguments = parser.parse_args()
    for kind in arguments.database or ["mariadb", "postgresql"]:
        if arguments.kill:
            kill(kind, quick=arguments.quick)
        else:
            measure(kind, arguments)


if __name__ == "__main__":
    main()
