"""The life of a private server: a temporary folder, a free loopback port, a supervisor process.

    NEW ──start──▶ RUNNING ◀──resume── PAUSED
                   │  ▲  └──pause──────▶
                 kill restart
                   ▼  │
                   DOWN (data kept)          any state ──stop──▶ STOPPED (folder deleted; it cannot start again)

Subclasses define the program, its arguments and the readiness probe.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from conquiet.testing import handshakes
from conquiet.testing.errors import ServerStartError, ServerStateError
from conquiet.testing.ports import free_port
from conquiet.testing.supervisor_client import ProcessReport, SupervisorClient, pause_between_polls

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

_PORT_ATTEMPTS = 4
_PORT_TAKEN = re.compile(r"already in use|eaddrinuse", re.IGNORECASE)
_TERMINATE_GRACE_S = 30.0


class ServerStatus(Enum):
    """State of a private server. DOWN: it can be started again. STOPPED: it cannot."""

    NEW = "new"
    RUNNING = "running"
    PAUSED = "paused"
    DOWN = "down"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A program, its arguments and additional environment variables.

    Attributes:
        account: User and group ids to run as, if not the current ones. Only root may name them.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    account: tuple[int, int] | None = None


class PrivateServer(ABC):
    """A real server that belongs to one test run. Use it as a context manager, or ``start`` and ``stop``.

    It listens on 127.0.0.1 only, needs no root, and ends with the process that started it, even on SIGKILL.
    """

    product: ClassVar[str]
    start_timeout_s: ClassVar[float] = 60.0
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    """Sent to the server to shut it down in order."""

    def __init__(self) -> None:
        self._status = ServerStatus.NEW
        self._supervisor: SupervisorClient | None = None
        self._port = 0
        self._version = ""
        self._last_log = ""

    # ------------------------------------------------------------------ defined by subclasses
    @property
    @abstractmethod
    def url(self) -> str:
        """Return the URL a client connects to."""

    @abstractmethod
    def _command(self) -> ServerCommand:
        """Return the command that runs the server in its folder on its ports."""

    @abstractmethod
    def _probe(self) -> str:
        """Return the version that *this* server reports by its own protocol; raise OSError while it is not ready.

        The reply must be tied to this server, by a socket in its folder or by its name: on a lost race for
        the port another server replies there.
        """

    def _prepare(self) -> None:  # noqa: B027 - most servers need none
        """Make the data folder ready. Called once, before the first start."""

    def _choose_ports(self) -> None:
        self._port = free_port()

    # ------------------------------------------------------------------ public
    @property
    def status(self) -> ServerStatus:
        """Return the state that this object put the server into."""
        return self._status

    @property
    def is_running(self) -> bool:
        """Return whether the process runs and is not paused; checks the process, so a crashed server is not running."""
        return self._status is ServerStatus.RUNNING and self._client().poll().is_running

    @property
    def name(self) -> str:
        """Return the product's usual name."""
        return self.product

    @property
    def host(self) -> str:
        """Return the loopback address."""
        return "127.0.0.1"

    @property
    def port(self) -> int:
        """Return the TCP port, chosen at the start; it stays the same over kill and restart."""
        return self._chosen(self._port)

    @property
    def pid(self) -> int:
        """Return the process id of the server."""
        pid = self._client().poll().pid
        if pid is None:
            raise ServerStateError(f"{self.product}: no process was started yet")
        return pid

    @property
    def version(self) -> str:
        """Return the version that the server reported when it became ready."""
        return self._version

    @property
    def folder(self) -> Path:
        """Return the temporary folder with the data and the log; ``stop`` deletes it."""
        return self._client().folder

    def start(self) -> Self:
        """Start and return once the server replies.

        Raises:
            ServerStartError: It did not; the text carries its log.
            ServerStateError: It was started before.
        """
        self._require("start", ServerStatus.NEW)
        self._supervisor = SupervisorClient(self.product)
        try:
            self._prepare()
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                self._choose_ports()
                # Another process may bind the port between the check and the server's start.
                if self._launch(retry_on_taken_port=attempt < _PORT_ATTEMPTS):
                    break
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server and remove its folder. May be called at any time and more than once."""
        # SIGKILL instead of a shutdown in order: the folder is deleted, so no data has to be saved.
        if self._supervisor is not None:
            self._last_log = self.log_tail()
            self._supervisor.end()
        self._status = ServerStatus.STOPPED

    def kill(self) -> None:
        """Kill the server (SIGKILL), as in a crash. The data folder and the port stay for ``restart``."""
        self._require("kill", ServerStatus.RUNNING, ServerStatus.PAUSED)
        self._client().kill()
        self._status = ServerStatus.DOWN

    def restart(self) -> None:
        """Start again on the same port with the same data; a running server is shut down first."""
        self._require("restart", ServerStatus.RUNNING, ServerStatus.PAUSED, ServerStatus.DOWN)
        if self._status is ServerStatus.PAUSED:
            self.resume()
        if self._status is ServerStatus.RUNNING:
            self._shut_down()
        self._launch(retry_on_taken_port=False)

    def pause(self) -> None:
        """Stop the server and all its processes (SIGSTOP): connections stay open, nothing replies."""
        self._require("pause", ServerStatus.RUNNING)
        self._client().pause()
        self._status = ServerStatus.PAUSED

    def resume(self) -> None:
        """Continue after ``pause`` (SIGCONT)."""
        self._require("resume", ServerStatus.PAUSED)
        self._client().resume()
        self._status = ServerStatus.RUNNING

    def ensure_running(self) -> None:
        """Resume or restart a shared server that a test left paused, killed or crashed."""
        if self._status is ServerStatus.PAUSED:
            self.resume()
        if not self.is_running:
            self.restart()

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the server's output; after ``stop``, those it had then."""
        if self._supervisor is None or self._status is ServerStatus.STOPPED:
            return self._last_log
        try:
            text = self._log_file().read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._status.value} port={self._port} version={self._version or '?'}>"

    # ------------------------------------------------------------------ internal
    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _chosen(self, port: int) -> int:
        """Return a port of the server, which it has from its start on."""
        if not port:
            raise ServerStateError(f"a {self.product} server has no port and no URL before its start")
        return port

    def _probe_tcp(self) -> socket.socket:
        """Return a connection to the port, for a probe."""
        return handshakes.connect_tcp(self.host, self.port, timeout_s=handshakes.PROBE_TIMEOUT_S)

    def _launch(self, *, retry_on_taken_port: bool) -> bool:
        """Run the command and wait for a reply. Return False only if the port was taken and may be changed."""
        command = self._command()
        begun = time.monotonic()
        written_before = self._log_size()
        report = self._run(command)
        while report.is_running:
            elapsed = time.monotonic() - begun
            try:
                self._version = self._probe()
            except OSError as error:
                if elapsed > self.start_timeout_s:
                    self._client().kill()
                    raise self._failed(command, f"gave no answer within {elapsed:.0f} s ({error})") from error
                pause_between_polls(elapsed)
                report = self._client().poll()
            else:
                self._status = ServerStatus.RUNNING
                return True
        self._status = ServerStatus.DOWN
        self._client().kill()  # children of the dead main process
        if retry_on_taken_port and _PORT_TAKEN.search(self._log_since(written_before)):
            return False
        raise self._failed(command, f"exited with code {report.exit_code} before it answered")

    def _run(self, command: ServerCommand) -> ProcessReport:
        return self._client().start(
            command.argv, {**os.environ, **command.env}, self._log_file(), account=command.account
        )

    def _run_to_end(self, command: ServerCommand) -> None:
        """Run a set-up program under the supervisor, so that it cannot be orphaned."""
        self._run(command)
        report = self._wait_for_end(self.start_timeout_s)
        if report.is_running:
            self._client().kill()
            raise self._failed(command, f"did not end within {self.start_timeout_s:.0f} s")
        if report.exit_code != 0:
            raise self._failed(command, f"exited with code {report.exit_code}")

    def _wait_for_end(self, timeout_s: float) -> ProcessReport:
        """Return the state of the process once it has ended, or after the time."""
        begun = time.monotonic()
        report = self._client().poll()
        while report.is_running and (elapsed := time.monotonic() - begun) < timeout_s:
            pause_between_polls(elapsed)
            report = self._client().poll()
        return report

    def _shut_down(self) -> None:
        """Request the end and wait for a grace period, then send SIGKILL to the rest (epmd, or a server that hangs)."""
        supervisor = self._client()
        supervisor.terminate(self.stop_signal)
        self._wait_for_end(_TERMINATE_GRACE_S)
        supervisor.kill()
        self._status = ServerStatus.DOWN

    def _failed(self, command: ServerCommand, what: str) -> ServerStartError:
        log = self.log_tail()
        shown = log or "(it wrote nothing)"
        return ServerStartError(f"{self.name} {what}.\n$ {shlex.join(command.argv)}\n{shown}", log=log)

    def _client(self) -> SupervisorClient:
        if self._supervisor is None:
            raise ServerStateError(f"{self.product} was not started; use it as a context manager or call start()")
        return self._supervisor

    def _require(self, verb: str, *allowed: ServerStatus) -> None:
        if self._status not in allowed:
            raise ServerStateError(f"cannot {verb} a {self.product} server that is {self._status.value}")

    def _log_file(self) -> Path:
        return self._client().folder / "server.log"

    def _log_size(self) -> int:
        try:
            return self._log_file().stat().st_size
        except OSError:
            return 0

    def _log_since(self, offset: int) -> str:
        return self._log_file().read_bytes()[offset:].decode(errors="replace")
