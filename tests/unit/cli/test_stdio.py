"""Standard streams that are closed or not UTF-8."""

import os
import subprocess
import sys
from pathlib import Path


def test_streams_that_are_closed_are_there_again() -> None:
    """If descriptor 1 is free, the next connection gets it, and children then print into that connection."""
    code = (
        "import os, sys; from conquiet.cli.stdio import repair_stdio; repair_stdio(); "
        "[os.fstat(number) for number in range(3)]; print(sys.stdout.isatty()); sys.exit(sys.stdin is not None)"
    )
    closing = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code]

    assert subprocess.run(closing, check=False, timeout=60).returncode == 0


def test_a_character_that_a_terminal_does_not_have_is_escaped(tmp_path: Path) -> None:
    code = "from conquiet.cli.stdio import repair_stdio; repair_stdio(); print('50 €')"
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, check=False, timeout=60
    )

    assert (done.returncode, done.stdout) == (0, rb"50 \u20ac" + b"\n")
