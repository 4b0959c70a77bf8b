"""Run all storms at full size, append the results to the ledger, and render the page.

    python scripts/torture.py                  once: about an hour
    python scripts/torture.py --hours 8        again and again with new seeds, for so long
    python scripts/torture.py --small          once, with the small storms of make test
    python scripts/torture.py -k scheduler     words that are not known here go to pytest

A failed storm does not end the run: its history is judged, its line is in the ledger. Exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEEDS = 2_000
"""Seeds of the simulation in each round."""


def run(words: list[str], **environment: str) -> bool:
    """Run a command here. Returns whether it succeeded."""
    return subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, check=False).returncode == 0


def main() -> int:
    """Run; return 1 if something failed."""
    parser = argparse.ArgumentParser(description="Run all storms and publish the ledger.")
    parser.add_argument("--hours", type=float, default=0.0, help="repeat with new seeds for so long")
    parser.add_argument("--small", action="store_true", help="the small form of each storm")
    parser.add_argument("--no-planted", action="store_true", help="leave the planted bugs out")
    options, words = parser.parse_known_args()
    ends_s, rounds, failed = time.monotonic() + options.hours * 3600, 0, 0
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    common = {"CONQUIET_LEDGER": str(ROOT / "ledger"), "CONQUIET_COMMIT": commit.stdout.strip()}
    if not options.small:
        common["CONQUIET_TORTURE"] = "1"
    limits = ["--timeout=7200", "-o", "faulthandler_timeout=7190"]
    while rounds == 0 or time.monotonic() < ends_s:
        seed = {"CONQUIET_SEED": str(int(time.time()))} if rounds else {}
        failed += not run([sys.executable, "-m", "pytest", "tests/invariants", *limits, *words], **common, **seed)
        first = str(1 + rounds * SEEDS)
        simulate = [sys.executable, "scripts/simulate.py", first, "--seeds", str(SEEDS), "--ledger"]
        failed += not run(simulate, **common)
        rounds += 1
    if not options.no_planted:
        failed += not run([sys.executable, "scripts/plant.py"])
    failed += not run([sys.executable, "scripts/ledger.py"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
