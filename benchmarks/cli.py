"""The start-up time of the command line, and what the demo gets done.

.venv/bin/python benchmarks/cli.py [--quick]

Side by side: python itself, python with typer alone (the raw limit of any command built on it), conquiet.cli.app, a
whole `conquiet --version`, and a whole `conquiet inspect` against a private server beside the same question
asked by redis-py alone.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from conquiet.testing import RedisServer

CONQUIET = str(Path(sys.executable).with_name("conquiet"))
PEER = (
    "import redis, sys; c = redis.Redis.from_url(sys.argv[1]); "
    "[c.xinfo_stream(key) for key in c.scan_iter(_type='stream')]"
)


def seconds(words: list[str]) -> tuple[float, float]:
    """Return wall clock and processor time of one run."""
    before, begun = os.times(), time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - begun, os.times()
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    rounds = 3 if parser.parse_args().quick else 11
    with RedisServer() as server:
        contenders = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "import typer": [sys.executable, "-c", "import typer"],
            "import conquiet.cli.app": [sys.executable, "-c", "import conquiet.cli.app"],
            "conquiet --version": [CONQUIET, "--version"],
            "redis-py: scan, xinfo": [sys.executable, "-c", PEER, server.url],
            "conquiet inspect": [CONQUIET, "inspect", "--redis-url", server.url],
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, words in contenders.items():  # interleaved: what disturbs one disturbs all
                taken[name].append(seconds(words))
    base = statistics.median(cpu for _, cpu in taken["python -c pass"])
    print(f"{'':<26}{'wall ms':>9}{'cpu ms':>9}{'cpu over python':>17}")
    for name, runs in taken.items():
        wall = statistics.median(wall for wall, _ in runs) * 1000
        cpu = statistics.median(cpu for _, cpu in runs) * 1000
        print(f"{name:<26}{wall:>9.0f}{cpu:>9.0f}{cpu - base * 1000:>17.0f}")
    done = subprocess.run([CONQUIET, "demo", "--json"], check=True, capture_output=True, text=True)
    ledger = json.loads(done.stdout)
    print(f"demo: {ledger['processed']:,} orders in {ledger['seconds']:.1f} s, lost {ledger['lost']}")


if __name__ == "__main__":
    main()
