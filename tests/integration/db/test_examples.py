"""The examples of docs/locking.md run unchanged."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "locking_strategies.py"


def test_the_locking_examples_run_and_end_with_the_right_balances(db_url: str) -> None:
    result = subprocess.run([sys.executable, str(EXAMPLE), db_url], capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "balances: [60, 20]"


def test_every_function_of_the_example_is_shown_in_the_guide() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "locking.md").read_text(encoding="utf-8")
    names = [line.split("(")[0].removeprefix("def ") for line in EXAMPLE.read_text().splitlines() if line[:4] == "def "]

    assert [name for name in names if name != "main" and f"`{name}`" not in guide] == []
