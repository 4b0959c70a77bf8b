"""The process that owns one private server, so that no server outlives its test run.

A test process that is killed with SIGKILL runs no clean-up. So the server is a child of the supervisor, and the
supervisor detects the death of the owner:

    owner (pytest) ══socket══ supervisor ──▶ server ──▶ processes that the server starts
                                  └── owns the temporary folder

When the socket ends, or the owner's pid is gone, the supervisor kills every descendant and removes the folder.
It is a *subreaper*: a process that daemonises itself (epmd does) becomes the supervisor's child instead of init's,
and is found and killed too. If the supervisor itself is killed, the kernel kills the server (PDEATHSIG) and only the
folder remains, which is harmless.

Rejected: PR_SET_PDEATHSIG in the owner (it fires when the *thread* that forked ends, not the process), atexit (not run
on SIGKILL), and a pid file that the next run cleans up (there may be no next run).

This file is started as a script with ``python -I -S`` and imports the standard library only.

Protocol: one JSON object per line on fd 0, one reply per request.
``{"op": "start", "argv": …, "env": …, "log": …, "account": [uid, gid] | null}``,
``{"op": "signal", "number": n}`` (whole tree), ``{"op": "terminate", "number": n}`` (main process only),
``{"op": "kill"}`` (replies when all are gone), ``{"op": "poll"}``, ``{"op": "end"}``. The first line is the
supervisor's own: its folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_IPC_RMID = 0
_ON_LINUX = sys.platform.startswith("linux")
_OWNER_CHECK_S = 1.0
_KILL_DEADLINE_S = 20.0
_REMOVE_DEADLINE_S = 8.0  # with the deadline above, shorter than the owner's wait for a reply
_TICK_S = 0.005


def _prctl() -> Callable[[int, int], int] | None:
    if not _ON_LINUX:
        return None
    # Looked up before any fork: importing between fork and exec is not safe.
    libc = ctypes.CDLL(None, use_errno=True)
    return lambda option, value: int(libc.prctl(option, value, 0, 0, 0))


def parents_from_proc() -> dict[int, tuple[int, str]]:
    """Return parent and state of every process; empty where there is no /proc."""
    found: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it ended meanwhile
            # The name in parentheses may hold spaces and parentheses itself: split after the last one.
            state, parent, *_ = entry.read_text(errors="replace").rpartition(")")[2].split()
            found[int(entry.parent.name)] = (int(parent), state)
    return found


def descendants(root: int) -> dict[int, str]:
    """Return the live processes below ``root`` with their states, without zombies."""
    parents = parents_from_proc()
    below: set[int] = {root}
    grown = True
    while grown:
        more = {pid for pid, (parent, _) in parents.items() if parent in below and pid not in below}
        grown = bool(more)
        below |= more
    return {pid: parents[pid][1] for pid in below - {root} if pid in parents and parents[pid][1] not in "ZX"}


def remove(folder: Path) -> None:
    """Remove a folder; repeat until it is gone.

    Processes that the supervisor must not kill may still write into it, such as children of the owner that notice its
    death a moment later. A file that they create during the removal keeps the folder.
    """
    deadline = time.monotonic() + _REMOVE_DEADLINE_S
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists() or time.monotonic() > deadline:
            return
        time.sleep(_TICK_S)


def remove_shared_memory(makers: set[int]) -> None:
    """Remove the System V segments that killed servers left: PostgreSQL makes one, and the kernel keeps it.

    Args:
        makers: Pids that this supervisor started. Only unused segments that they made are removed.
    """
    with contextlib.suppress(OSError, ValueError, KeyError):
        head, *lines = Path("/proc/sysvipc/shm").read_text().splitlines()
        for line in lines:
            found = dict(zip(head.split(), line.split(), strict=False))
            if int(found["cpid"]) in makers and int(found["nattch"]) == 0:
                ctypes.CDLL(None).shmctl(int(found["shmid"]), _IPC_RMID, None)


class ServerSupervisor:
    """Serve one owner until it ends or is killed."""

    def __init__(self, channel: socket.socket, owner: int, folder: Path) -> None:
        self._channel = channel
        self._owner = owner
        self._folder = folder
        self._prctl = _prctl()
        self._main: int | None = None
        self._exit_code: int | None = None
        self._groups: set[int] = set()
        # Kept so that Popen does not wait for a pid: only _reap does.
        self._spawned: list[subprocess.Popen[bytes]] = []
        if self._prctl is not None:
            self._prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def serve(self) -> None:
        """Serve requests until the owner has ended; always kill the server and delete the folder."""
        try:
            self._answer({"folder": str(self._folder), "pid": os.getpid()})
            for line in self._lines():
                request = json.loads(line)
                if request["op"] == "end":
                    break
                self._answer(self._perform(request))
        finally:
            self._kill()
            remove_shared_memory({child.pid for child in self._spawned})
            remove(self._folder)
            with contextlib.suppress(OSError):
                self._answer({"ended": True})

    def _lines(self) -> Iterator[bytes]:
        """Yield requests until the socket or the owner's process ends.

        Both are watched: a child that the owner forked holds a copy of the socket, so the socket may end late or never.
        """
        watched: list[Any] = [self._channel]
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                watched.append(os.pidfd_open(self._owner))
        pending = b""
        while os.getppid() == self._owner:
            ready, _, _ = select.select(watched, [], [], _OWNER_CHECK_S)
            self._reap()
            if self._channel not in ready:
                continue
            received = self._channel.recv(65_536)
            if not received:
                return
            pending += received
            while b"\n" in pending:
                line, _, pending = pending.partition(b"\n")
                yield line

    def _answer(self, answer: dict[str, Any]) -> None:
        self._channel.sendall(json.dumps(answer).encode() + b"\n")

    def _perform(self, request: dict[str, Any]) -> dict[str, Any]:
        # Reap first, so that no signal is sent to the pid of an ended process, which another process may have by now.
        self._reap()
        try:
            match request["op"]:
                case "start":
                    self._start(request["argv"], request["env"], request["log"], request.get("account"))
                case "signal":
                    self._signal_all(request["number"])
                case "terminate" if self._main is not None and self._exit_code is None:
                    os.kill(self._main, request.get("number", signal.SIGTERM))
                case "kill":
                    self._kill()
                case _:
                    pass
        except OSError as error:
            return {"error": str(error)}
        self._reap()
        return {"pid": self._main, "exit_code": self._exit_code}

    def _start(self, argv: list[str], env: dict[str, str], log: str, account: list[int] | None) -> None:
        user, group = account or (None, None)
        with Path(log).open("ab") as output:
            child = subprocess.Popen(  # noqa: S603 - the owner's own command
                argv,
                stdin=subprocess.DEVNULL,  # also keeps the owner's socket, our fd 0, out of the server
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=self._folder,
                start_new_session=True,
                user=user,
                group=group,
                extra_groups=None if account is None else [],
                # Runs after the change of the user, which clears the signal that it sets.
                preexec_fn=self._die_with_me if _ON_LINUX else None,  # noqa: PLW1509 - one thread only
            )
        self._spawned.append(child)
        self._groups.add(child.pid)
        self._main, self._exit_code = child.pid, None

    def _die_with_me(self) -> None:
        if self._prctl is not None:
            self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        """Signal the whole tree. SIGSTOP is repeated until nothing runs: a process may fork meanwhile."""
        deadline = time.monotonic() + _KILL_DEADLINE_S
        while True:
            states = self._members()
            # A stopped process (T) has had its SIGSTOP; every other signal is sent once.
            targets = [pid for pid, state in states.items() if number != signal.SIGSTOP or state not in "Tt"]
            for pid in targets:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number != signal.SIGSTOP or not targets or not _ON_LINUX or time.monotonic() > deadline:
                return
            time.sleep(_TICK_S)

    def _members(self) -> dict[int, str]:
        if _ON_LINUX:
            return descendants(os.getpid())
        # Without /proc the process group of the session is signalled: a negative pid reaches the whole group.
        return {-group: "?" for group in self._groups}

    def _kill(self) -> None:
        """Kill (SIGKILL) until no descendant is left. Loops because a process can fork between listing and killing."""
        deadline = time.monotonic() + _KILL_DEADLINE_S
        while time.monotonic() < deadline:
            for pid in self._members():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not self._reap():
                return
            time.sleep(_TICK_S)

    def _reap(self) -> bool:
        """Reap ended children; return whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if not _ON_LINUX:
                self._groups.discard(pid)
            if pid == self._main:
                self._exit_code = os.waitstatus_to_exitcode(status)


def main(owner: int, prefix: str, parent_folder: str) -> None:
    """Run the script; fd 0 is the socket to ``owner``."""
    # Handlers, not SIG_IGN: an ignored signal stays ignored in the server, a handled one does not. Ctrl-C reaches the
    # whole terminal group, and the server must run until the teardown of the tests has ended.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # The supervisor makes the folder, not the owner: between a mkdtemp and a spawn the owner could be killed.
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent_folder)).resolve()
    with socket.socket(fileno=0) as channel:
        ServerSupervisor(channel, owner, folder).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
