"""Run the runtime engine in seeded worlds: virtual time, kills at any await, lost replies, a model of Redis.

    python scripts/simulate.py 4711                     one seed, with its history and the digest of its trace
    python scripts/simulate.py 1 --seeds 1000           a thousand seeds from 1 on
    python scripts/simulate.py 1 --seeds 9999 --stop    until the first anomaly

A seed with an anomaly is printed; running it again repeats it exactly. Exit code 1 if there was one.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.simulation.world import live  # noqa: E402 - found through the line above


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; return 1 if one of them has an anomaly."""
    parser = argparse.ArgumentParser(description="Run the engine in seeded worlds.")
    parser.add_argument("seed", type=int)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--ledger", action="store_true", help="append the totals to ledger/simulation.jsonl")
    parser.add_argument("--stop", action="store_true", help="stop at the first anomaly")
    options = parser.parse_args(arguments)
    began_s, cpu_s, totals = time.monotonic(), time.process_time(), Counter[str]()
    traces = hashlib.sha256()
    # Each seed ends with a full collection of what it has left. Without this it would visit every imported module too,
    # which took half of the time.
    gc.collect()
    gc.freeze()
    for seed in range(options.seed, options.seed + options.seeds):
        result = live(seed)
        totals.update({name: result.summary[name] for name in ("messages", "faults", "deliveries", "again")})
        totals.update(steps=result.steps, seeds=1)
        traces.update(result.trace.encode())
        if options.seeds == 1:
            for line in result.lines:
                print(json.dumps(line))
            print(result.trace)
        if result.anomalies:
            totals["bad"] += 1
            print(f"seed {seed}: {json.dumps(result.summary['examples'])}", flush=True)
            if options.stop:
                break
    took_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
    lives = f"{totals['messages'] / took_s * 3600:,.0f} message lives an hour"
    print(f"{dict(totals)} in {took_s:.1f} s, {cpu_s:.1f} s of CPU: {lives}")
    if options.ledger:
        line = {name: totals[name] for name in ("seeds", "messages", "faults", "deliveries", "again", "steps", "bad")}
        line |= {
            "first": options.seed,
            "traces": traces.hexdigest(),
            "commit": os.environ.get("CONQUIET_COMMIT", "unknown"),
        }
        line |= {"seconds": round(took_s), "lives_an_hour": round(totals["messages"] / took_s * 3600)}
        with (ROOT / "ledger" / "simulation.jsonl").open("a", encoding="utf-8") as book:
            book.write(json.dumps(line, sort_keys=True) + "\n")
    return 1 if totals["bad"] else 0


if __name__ == "__main__":
    sys.exit(main())
