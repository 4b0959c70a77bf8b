"""Starting, killing and ending the demo's worker processes."""

import contextlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from conquiet.cli.demo.worker import Job

_END_S = 10.0


@dataclass(slots=True)
class Member:
    """One worker: its job, and the process that does it now."""

    job: Job
    process: "subprocess.Popen[bytes]"
    alive: bool = True


class Crew:
    """All workers. Leaving it as a context manager ends every process, politely first."""

    def __init__(self, jobs: list[Job], log: Path) -> None:
        self._jobs = jobs
        self._log = log
        self.members: list[Member] = []

    def __enter__(self) -> Self:
        try:
            for job in self._jobs:
                self.members.append(Member(job, self._start(job)))
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def kill(self, member: Member) -> None:
        """SIGKILL."""
        member.process.kill()
        member.process.wait()
        _hang_up(member)
        member.alive = False

    def restart(self, member: Member) -> None:
        """Start a new process under the name of one that ended."""
        member.process.wait()
        _hang_up(member)
        member.process = self._start(member.job)
        member.alive = True

    def fallen(self) -> list[Member]:
        """Return the members whose process ended by itself."""
        return [member for member in self.members if member.alive and member.process.poll() is not None]

    def end(self) -> None:
        """Let go of every leash and wait; whoever does not end in time is killed."""
        for member in self.members:
            _hang_up(member)
        for member in self.members:
            try:
                member.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()

    def last_words(self) -> str:
        """Return the last line that a worker wrote about its failure."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return lines[-1] if lines else ""

    def _start(self, job: Job) -> "subprocess.Popen[bytes]":
        # A process group of its own: Ctrl-C on the terminal is for the conductor alone.
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "conquiet.cli.demo.worker"], stdin=subprocess.PIPE, stderr=log, process_group=0
            )
        assert process.stdin is not None  # noqa: S101 - asked for above
        try:
            process.stdin.write(job.line())
            process.stdin.flush()
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process


def _hang_up(member: Member) -> None:
    if member.process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            member.process.stdin.close()
