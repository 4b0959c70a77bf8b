"""The reply to the shell when a user presses Tab."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import subprocess

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("conquiet dead", {"dead-letters"}),
        ("conquiet dead-letters re", {"replay"}),
        ("conquiet enqueue orders --redis", {"--redis-url"}),
    ],
)
def test_commands_and_options_are_completed(run: Run, typed: str, offered: set[str]) -> None:
    last = len(typed.split()) - 1
    env = {"_CONQUIET_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(last)}

    done = run(env=env)

    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_us(run: Run, shell: str) -> None:
    done = run(env={"_CONQUIET_COMPLETE": f"source_{shell}"})

    assert done.returncode == 0
    assert f"_CONQUIET_COMPLETE=complete_{shell}" in done.stdout
