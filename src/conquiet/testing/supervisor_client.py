"""The owner's side of the connection to a supervisor process (see ``server_supervisor``)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conquiet.testing import server_supervisor
from conquiet.testing.errors import ServerStartError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DATA_DIR_VARIABLE = "CONQUIET_TEST_DATA_DIR"
_ANSWER_TIMEOUT_S = 30.0
_LONGEST_PARENT = 60
_GONE = "the supervisor process is gone: was it killed? Its server died with it."


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """State of the process that the supervisor started last."""

    pid: int | None
    exit_code: int | None

    @property
    def is_running(self) -> bool:
        """Return True from the start until the exit was seen."""
        return self.pid is not None and self.exit_code is None


class SupervisorClient:
    """Start one supervisor and send it requests. Safe to use from many threads; not from a forked child.

    Attributes:
        folder: The temporary folder. It is removed when the supervisor ends, even after a crash.
    """

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        mine, theirs = socket.socketpair()
        with theirs:
            # Its own session, so that Ctrl-C and a closing terminal do not reach it. Its output is discarded: an
            # inherited pipe would keep "pytest | tee" waiting until the supervisor ends.
            self._process = subprocess.Popen(  # noqa: S603 - our own script
                [
                    sys.executable,
                    "-I",
                    "-S",
                    server_supervisor.__file__,
                    str(self._owner),
                    f"conquiet-{name}-",
                    _parent_folder(),
                ],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._channel = mine
        self._channel.settimeout(_ANSWER_TIMEOUT_S)
        self._reader = mine.makefile("rb")
        self._ended = False
        try:
            self.folder = Path(self._answer()["folder"])
        except BaseException:
            self._hang_up()
            raise

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path, *, account: tuple[int, int] | None = None
    ) -> ProcessReport:
        """Start ``argv`` under the supervisor, its output appended to ``log``, as the user and group of ``account``.

        Raises:
            ServerStartError: The program could not be executed.
        """
        return self._request({"op": "start", "argv": list(argv), "env": dict(env), "log": str(log), "account": account})

    def poll(self) -> ProcessReport:
        """Return the state of the process."""
        return self._request({"op": "poll"})

    def kill(self) -> ProcessReport:
        """Kill the server and its descendants; return when all are gone."""
        return self._request({"op": "kill"})

    def pause(self) -> None:
        """Stop the whole process tree (SIGSTOP); return when all of it has stopped."""
        self._request({"op": "signal", "number": int(signal.SIGSTOP)})

    def resume(self) -> None:
        """Continue the whole process tree (SIGCONT)."""
        self._request({"op": "signal", "number": int(signal.SIGCONT)})

    def terminate(self, number: int = signal.SIGTERM) -> None:
        """Send SIGTERM, or the signal given, to the main process only: it ends its children itself."""
        self._request({"op": "terminate", "number": int(number)})

    def end(self) -> None:
        """Kill everything and remove the folder. Idempotent; a no-op in a forked child, which is not the owner."""
        with self._lock:
            if self._ended or os.getpid() != self._owner:
                return
            self._ended = True
            with contextlib.suppress(OSError, ValueError):
                self._channel.sendall(b'{"op": "end"}\n')
                self._reader.readline()
            self._hang_up()

    def _hang_up(self) -> None:
        self._reader.close()
        self._channel.close()
        try:
            self._process.wait(_ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # SIGTERM still runs its clean-up; SIGKILL would leave the folder behind.
            self._process.terminate()
            self._process.wait(_ANSWER_TIMEOUT_S)

    def _request(self, request: dict[str, Any]) -> ProcessReport:
        with self._lock:
            if self._ended:
                return ProcessReport(None, None)
            try:
                self._channel.sendall(json.dumps(request).encode() + b"\n")
                answer = self._answer()
            except OSError as error:
                raise ServerStartError(f"{_GONE} ({error})") from error
        if "error" in answer:
            raise ServerStartError(f"the supervisor could not do {request['op']!r}: {answer['error']}")
        return ProcessReport(answer["pid"], answer["exit_code"])

    def _answer(self) -> dict[str, Any]:
        line = self._reader.readline()
        if not line:
            raise ServerStartError(_GONE)
        answer: dict[str, Any] = json.loads(line)
        return answer


def pause_between_polls(elapsed_s: float) -> None:
    """Sleep briefly at first, when a fast server may be ready already, and longer later."""
    time.sleep(0.005 if elapsed_s < 1 else 0.05)


def _parent_folder() -> str:
    # A Unix socket's path may have 107 bytes at most (103 on macOS), and servers put theirs inside the folder.
    usual = os.environ.get(DATA_DIR_VARIABLE) or tempfile.gettempdir()
    return usual if len(usual) <= _LONGEST_PARENT else "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it
