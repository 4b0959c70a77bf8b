"""The example of this package works as documented."""

import subprocess
import sys

import pytest
from tests.examples import EXAMPLES, run_example

EXAMPLE = EXAMPLES / "scheduler_nightly_report.py"


@pytest.mark.spec("CM-003.4", "CM-002.1")
def test_the_nightly_report_runs_once_a_night_over_two_hosts(redis_url: str) -> None:
    """Timing is the scheduler's, handling the processor's; the engine below them knows neither."""
    ran = run_example(EXAMPLE, redis_url)

    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    lines = ran.stdout.splitlines()
    assert lines.pop(-2) in {f"next nightly run: {at} in Berlin" for at in ("02:30", "03:00")}  # 03:00 once a year
    assert lines == [
        "due 28 Mar 02:30 CET",
        "due 29 Mar 03:00 CEST",
        "due 30 Mar 02:30 CEST",
        "due 24 Oct 02:30 CEST",
        "due 25 Oct 02:30 CEST",
        "due 26 Oct 02:30 CET",
        "two hosts, 3 different reports: no tick was fired twice",
    ]


@pytest.mark.spec("CM-002.1")
def test_the_engine_knows_no_schedule() -> None:
    """Neither cronsim nor this package is imported when it is loaded."""
    code = "import sys, conquiet.runtime; print({'cronsim', 'conquiet.scheduler'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
