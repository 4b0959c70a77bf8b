"""``conquiet demo``: its output, its promises, and that it leaves nothing behind."""

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import create_engine, text

from conquiet.testing import wait_until

Start = Callable[..., "subprocess.Popen[str]"]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty folder for temporary files; short, because sockets are put into it."""
    folder = Path(tempfile.mkdtemp(prefix="cq"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start(command: Path, clean_environment: Callable[..., dict[str, str]], home: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str, by_make: bool = False, **more: Any) -> "subprocess.Popen[str]":
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | more
        # Installed targets are taken as they are (-o): no set-up in the middle of a test.
        argv = ["make", "--no-print-directory", "-C", str(ROOT), "-o", ".venv/.ready", "demo"]
        environment = clean_environment(
            TMPDIR=str(home), TERM="xterm", MAKEFLAGS="", MAKELEVEL="0", ARGS="", PYTHONFAULTHANDLER="1"
        )
        process: subprocess.Popen[str] = subprocess.Popen(
            argv if by_make else [command, "demo", *words],
            env=environment,
            **options,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def relatives(home: Path) -> list[int]:
    """Processes that were started with our folder for temporary files, however they are related to us."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"TMPDIR={home}\0".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def wait_until_nothing_is_left(home: Path) -> None:
    wait_until(lambda: not relatives(home), timeout_s=120, message=lambda: f"left running: {relatives(home)}")
    wait_until(lambda: not list(home.iterdir()), timeout_s=120, message=lambda: f"left lying: {list(home.iterdir())}")


def wait_or_show_stacks(process: "subprocess.Popen[str]") -> int:
    """Return the exit code. A process that hangs prints the stacks of its threads (PYTHONFAULTHANDLER) and fails."""
    try:
        return process.wait(300)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        output, _ = process.communicate(timeout=60)
        pytest.fail(f"the demo did not end:\n{output}")


def read_until(process: "subprocess.Popen[str]", sign: str) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if sign in line:
            return seen
    raise AssertionError(f"never saw {sign!r} in:\n{seen}")


def test_the_whole_demo_in_a_pipe_loses_nothing_and_leaves_nothing(start: Start, home: Path) -> None:
    """10,000 orders, 4 workers, one killed half-way: ``make demo``, as the README has it."""
    process = start(by_make=True)

    output, _ = process.communicate()

    assert process.returncode == 0, output
    assert "worker-2 killed with -9 after COMMIT, before its acknowledgement" in output
    assert re.search(r"worker-\d took over \d+ messages of the killed worker", output)
    summary = dict(re.findall(r"^(\S.*?) {2,}(.+)$", output, re.MULTILINE))
    assert (summary["enqueued"], summary["processed"], summary["lost"]) == ("10,000", "10,000", "0")
    assert int(summary["duplicates skipped"]) >= 1, "the one killed between COMMIT and acknowledgement"
    assert "every cent in place" in summary["money"]
    assert "\x1b" not in output
    assert "\r" not in output
    wait_until_nothing_is_left(home)


def test_on_a_terminal_it_is_live_and_ends_with_the_summary(start: Start, home: Path) -> None:
    ours, theirs = pty.openpty()
    process = start("--orders", "400", "--workers", "2", stdin=theirs, stdout=theirs, stderr=theirs, text=False)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # the terminal ends with its last process
        while chunk := os.read(ours, 65_536):
            seen += chunk
    os.close(ours)

    assert process.wait() == 0
    screen = seen.decode("utf-8", "replace")
    assert "\x1b[" in screen, "it moves the cursor"
    assert "worker-1" in screen
    assert "took over" in screen
    assert "Nothing lost, nothing done twice: 400 orders" in screen
    wait_until_nothing_is_left(home)


@pytest.mark.parametrize(
    ("moment", "signum"),
    [("orders enqueued", signal.SIGINT), ("worker processes", signal.SIGTERM), ("killed with", signal.SIGINT)],
)
def test_a_signal_at_any_moment_cleans_up(start: Start, home: Path, moment: str, signum: signal.Signals) -> None:
    process = start("--orders", "3000", "--workers", "1")
    read_until(process, moment)

    process.send_signal(signum)
    process.send_signal(signum)  # impatience does not hurt

    assert wait_or_show_stacks(process) == 128 + signum
    assert process.stdout is not None
    assert "Traceback" not in process.stdout.read()
    wait_until_nothing_is_left(home)


def test_killed_itself_it_leaves_nothing_running_and_nothing_lying_around(start: Start, home: Path) -> None:
    process = start("--orders", "3000", "--workers", "1")
    read_until(process, "worker processes")

    process.kill()

    wait_until_nothing_is_left(home)


def test_on_servers_of_yours_it_removes_what_it_made(
    start: Start, client: Redis, redis_url: str, db_url: str, home: Path
) -> None:
    """On MySQL the balances are read under row locks."""
    before = set(client.scan_iter("*"))
    process = start("--orders", "200", "--workers", "2", "--redis-url", redis_url, "--db-url", db_url, "--json")

    output, _ = process.communicate()

    summary = json.loads(output)
    assert (process.returncode, summary["balanced"], summary["lost"], summary["kills"]) == (0, True, 0, 1), output
    assert set(client.scan_iter("*")) == before
    engine = create_engine(db_url)
    with engine.connect() as connection:
        assert list(connection.execute(text("SHOW TABLES"))) == []
    engine.dispose()
    wait_until_nothing_is_left(home)


def test_chaos_kills_workers_and_redis_and_loses_nothing(start: Start, home: Path) -> None:
    process = start("--chaos", "--orders", "400", "--workers", "2", "--json")

    output, _ = process.communicate()

    summary = json.loads(output)
    assert (process.returncode, summary["balanced"]) == (0, True), output
    assert (summary["kills"], summary["restarts"]) == (4, 2)
    wait_until_nothing_is_left(home)


def test_without_a_server_at_the_url_it_says_so(start: Start, home: Path) -> None:
    process = start("--redis-url", "redis://:geheim@127.0.0.1:1")

    output, _ = process.communicate()

    assert process.returncode == 2
    assert "conquiet: Redis at redis://***@127.0.0.1:1 does not answer" in output
    assert "geheim" not in output
    wait_until_nothing_is_left(home)
