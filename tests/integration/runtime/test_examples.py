"""The examples of this room do what they say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("runtime_*.py"))

OUTCOMES = {
    "runtime_orders": ("succeeded 20, failed 1", "message failed\n"),  # a program without logging sees warnings
    "runtime_sync_handler": ("rendered report 7", ""),
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_to_its_end(example: Path, redis_url: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        env={**os.environ, "REDIS_URL": redis_url},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    told, warned = OUTCOMES[example.stem]
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == warned
    assert told in ran.stdout
