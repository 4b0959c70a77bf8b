"""An interrupted command ends even if its libraries wait for something."""

import subprocess
import sys
import textwrap

import pytest

from conquiet.cli.forced_end import force_end_after_interrupt

STUCK = """
    import sys, threading
    from conquiet.cli import forced_end
    forced_end._AFTER_S = 0.1
    {arm}
    lock = threading.Lock()
    lock.acquire()
    try:
        with forced_end.force_end_after_interrupt():
            raise {error}
    finally:
        lock.acquire(timeout={patience})  # what closing a client does after an interruption inside its pool
"""


def run(**parts: object) -> int:
    code = textwrap.dedent(STUCK.format(**{"arm": "forced_end.arm()", **parts}))
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, timeout=60).returncode


@pytest.mark.parametrize(("error", "code"), [("KeyboardInterrupt", 130), ("SystemExit(143)", 143)])
def test_a_command_that_cannot_close_ends_with_its_exit_code(error: str, code: int) -> None:
    assert run(error=error, patience=-1) == code


def test_a_process_with_another_job_is_not_ended() -> None:
    """A program that calls the commands catches the interruption and continues."""
    assert run(error="SystemExit(7)", patience=1, arm="") == 7


def test_an_ordinary_error_ends_nothing() -> None:
    with pytest.raises(LookupError), force_end_after_interrupt():
        raise LookupError
