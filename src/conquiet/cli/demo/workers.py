"""Start, kill and end the demo's worker processes."""

import contextlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from conquiet.cli.demo.worker import WorkerSettings

_END_S = 10.0


@dataclass(slots=True)
class WorkerProcess:
    """One worker: its settings, and its current process."""

    settings: WorkerSettings
    process: "subprocess.Popen[bytes]"
    alive: bool = True


class WorkerProcesses:
    """All workers. Leaving the context manager ends every process, gracefully first."""

    def __init__(self, settings: list[WorkerSettings], log: Path) -> None:
        self._settings = settings
        self._log = log
        self.processes: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        try:
            for settings in self._settings:
                self.processes.append(WorkerProcess(settings, self._start(settings)))
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def kill(self, worker: WorkerProcess) -> None:
        """End a process with SIGKILL."""
        worker.process.kill()
        worker.process.wait()
        _close_pipe(worker)
        worker.alive = False

    def restart(self, worker: WorkerProcess) -> None:
        """Start a new process under the name of an ended worker."""
        worker.process.wait()
        _close_pipe(worker)
        worker.process = self._start(worker.settings)
        worker.alive = True

    def ended(self) -> list[WorkerProcess]:
        """Return the workers with a process that ended without a kill."""
        return [worker for worker in self.processes if worker.alive and worker.process.poll() is not None]

    def end(self) -> None:
        """Close every pipe and wait; a process that does not end in time is killed."""
        for worker in self.processes:
            _close_pipe(worker)
        for worker in self.processes:
            try:
                worker.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    def last_error_line(self) -> str:
        """Return the last line that a worker wrote about its failure."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return lines[-1] if lines else ""

    def _start(self, settings: WorkerSettings) -> "subprocess.Popen[bytes]":
        # A separate process group: Ctrl-C on the terminal reaches only the orchestrator.
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "conquiet.cli.demo.worker"], stdin=subprocess.PIPE, stderr=log, process_group=0
            )
        assert process.stdin is not None  # noqa: S101 - requested above
        try:
            process.stdin.write(settings.line())
            process.stdin.flush()
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process


def _close_pipe(worker: WorkerProcess) -> None:
    if worker.process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.close()
