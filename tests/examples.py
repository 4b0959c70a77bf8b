"""Run the programs of the folder ``examples``."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_example(path: Path, redis_url: str) -> subprocess.CompletedProcess[str]:
    """Run an example against the Redis of the test. A warning is an error."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        env={**os.environ, "REDIS_URL": redis_url},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
