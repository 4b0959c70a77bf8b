"""The examples of this room do what they say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("runtime_*.py"))


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

    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert "rendered report 7" in ran.stdout or "succeeded 20, failed 1" in ran.stdout
