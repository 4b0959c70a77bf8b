"""The queue's examples, run as a reader would run them."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script: str, redis_url: str, *arguments: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *arguments],
        env={**os.environ, "REDIS_URL": redis_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_the_producer_and_the_worker_meet(redis_url: str) -> None:
    produced = run("queue_producer.py", redis_url)
    worked = run("queue_worker.py", redis_url, "5")

    assert produced[1:] == ["many: 3", "once: True", "backlog: 5"]
    assert worked[0] == "order: {'order': 1, 'amount': '19.99'}"
    assert len(worked) == 5
