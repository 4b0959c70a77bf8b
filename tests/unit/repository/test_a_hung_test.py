"""The settings in pyproject.toml promise for a hanging test that the run ends and names the place."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]

SUITE = """
import threading
import time
import pytest

@pytest.mark.parametrize("number", range(20))
def test_of_no_group(number):
    time.sleep(0.01)

@pytest.mark.xdist_group("slow")
@pytest.mark.parametrize("number", range(5))
def test_of_a_group(number):
    if number == 3:
        threading.Event().wait()
"""


def test_it_ends_the_run_with_its_name_and_the_stack(tmp_path: Path) -> None:
    suite = tmp_path / "test_suite.py"
    suite.write_text(SUITE)
    settings = ["-c", str(REPOSITORY / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:randomly"]
    limits = ["-o", "timeout=3", "-o", "faulthandler_timeout=2"]

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", *settings, *limits, str(suite)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert run.returncode == 1
    assert "test_of_a_group[3]" in run.stdout.partition("FAILED")[2]
    assert "in test_of_a_group" in run.stderr
