"""The examples of runtime do what they describe."""

import re
from pathlib import Path

import pytest
from tests.examples import EXAMPLES, run_example

PROGRAMS = sorted(EXAMPLES.glob("runtime_*.py"))

OUTCOMES = {
    # A program without logging sees warnings.
    "runtime_orders": (
        "succeeded 20, failed 1",
        r"handler failed for message \S+ of example:orders, delivery 1 of 20, .*\n",
    ),
    "runtime_sync_handler": ("rendered report 7", ""),
}


@pytest.mark.parametrize("example", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_runs_to_its_end(example: Path, redis_url: str) -> None:
    ran = run_example(example, redis_url)

    reported, warned = OUTCOMES[example.stem]
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(warned, ran.stderr), ran.stderr
    assert reported in ran.stdout
