"""The supervisor's protocol, spoken by hand: one JSON line each way."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conquiet.testing import wait_until
from conquiet.testing.server_supervisor import descendants, remove

# Two generations, and the younger one leaves session and group of the elder, as a daemon does.
FAMILY = "setsid sleep 61 & exec sleep 60"


class Line:
    """A supervisor run as a module, so that coverage sees it; servers use a faster, isolated start."""

    def __init__(self, parent_folder: Path) -> None:
        self._mine, theirs = socket.socketpair()
        command = [
            sys.executable,
            "-m",
            "conquiet.testing.server_supervisor",
            str(os.getpid()),
            "guarded-",
            str(parent_folder),
        ]
        with theirs:
            self.process = subprocess.Popen(command, stdin=theirs.fileno())
        self._reader = self._mine.makefile("rb")
        self.folder = Path(self.read()["folder"])

    def read(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._reader.readline())
        return answer

    def ask(self, op: str, **facts: object) -> dict[str, Any]:
        self._mine.sendall(json.dumps({"op": op, **facts}).encode() + b"\n")
        return self.read()

    def start(self, shell: str) -> dict[str, Any]:
        return self.ask("start", argv=["/bin/sh", "-c", shell], env=dict(os.environ), log=str(self.folder / "log"))

    def states(self) -> list[str]:
        return list(descendants(self.process.pid).values())

    def close(self) -> None:
        self._reader.close()
        self._mine.close()
        self.process.wait()


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    supervisor = Line(tmp_path)
    yield supervisor
    supervisor.close()


def test_a_process_is_reported_with_pid_and_then_exit_code(line: Line) -> None:
    report = line.start("exit 7")

    assert report["pid"] in range(1, 1 << 22)
    wait_until(lambda: line.ask("poll") == {"pid": report["pid"], "exit_code": 7}, message="exit code 7")


def test_a_process_runs_in_the_folder_and_writes_to_the_log(line: Line) -> None:
    line.start("pwd; echo complaint >&2")

    log = line.folder / "log"
    wait_until(lambda: log.read_text() == f"{line.folder}\ncomplaint\n", message="both lines in the log")


def test_a_program_that_cannot_be_executed_is_reported(line: Line) -> None:
    answer = line.ask("start", argv=["/no/such/program"], env={}, log=str(line.folder / "log"))

    assert "No such file" in answer["error"]
    assert line.ask("poll") == {"pid": None, "exit_code": None}


def test_stop_and_continue_reach_the_whole_tree_daemons_included(line: Line) -> None:
    line.start(FAMILY)
    wait_until(lambda: len(line.states()) == 2, message=lambda: f"{line.states()}")

    line.ask("signal", number=int(signal.SIGSTOP))
    assert line.states() == ["T", "T"]

    line.ask("signal", number=int(signal.SIGCONT))
    wait_until(lambda: "T" not in line.states(), message="both run again")


def test_terminate_asks_only_the_main_process_and_kill_takes_the_rest(line: Line) -> None:
    line.start(FAMILY)
    wait_until(lambda: len(line.states()) == 2, message=lambda: f"{line.states()}")

    line.ask("terminate")
    wait_until(lambda: line.ask("poll")["exit_code"] == -signal.SIGTERM, message="terminated")
    assert len(line.states()) == 1
    line.ask("terminate")  # the process has ended, and its pid may belong to another one by now

    line.ask("kill")
    assert line.states() == []
    assert line.folder.exists()


def test_the_end_is_answered_when_all_is_gone(line: Line) -> None:
    line.start(FAMILY)

    assert line.ask("end") == {"ended": True}

    assert not line.folder.exists()
    assert line.process.wait() == 0


def test_a_folder_is_removed_although_files_appear_in_it_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of a dead owner writes for a moment longer than the supervisor takes to notice."""
    folder = tmp_path / "guarded"
    folder.mkdir()
    late = [folder / "demo.sqlite-wal", folder / "demo.sqlite"]
    rmdir = os.rmdir

    def make_one_more(*words: Any, **more: Any) -> None:
        if late:
            late.pop().touch()
        rmdir(*words, **more)

    monkeypatch.setattr(os, "rmdir", make_one_more)

    remove(folder)

    assert not folder.exists()
    assert not late


def test_a_closed_line_ends_everything_without_a_word(line: Line) -> None:
    line.start(FAMILY)

    line.close()

    assert not line.folder.exists()
    assert line.process.returncode == 0
