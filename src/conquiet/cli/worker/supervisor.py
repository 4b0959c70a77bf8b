"""Starts worker processes, starts them again when they die, ends them when asked. Imports none of the user's code.

RUNNING ──signal──▶ DRAINING: each process gets SIGTERM and the grace period, then (or at a second signal) SIGKILL
   │
   └─ a process ended by itself: restart with backoff, or end the whole (see ``restarts``), or wait for a change
"""

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import typer

from conquiet.cli.failures import FAILED, NOT_DONE
from conquiet.cli.worker.child import SIGNALS, VARIABLE, Orders
from conquiet.cli.worker.endpoints import Answer, Endpoints, as_json, metrics_of
from conquiet.cli.worker.notify import notify_systemd
from conquiet.cli.worker.pulse import Pulse
from conquiet.cli.worker.reload import SourceWatch
from conquiet.cli.worker.restarts import CRASHES, GOOD_ENDS, SIGNALLED, WINDOW_S, Next, RestartPolicy
from conquiet.signals import TerminationHandlers, install_termination_handlers

_ROUND_S = 0.1
_RELOAD_LOOK_S = 0.5
_STALE_ROUND_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings:
    """What the supervisor is told.

    Attributes:
        target: ``module:object``.
        processes: How many.
        concurrency: Most handlers at once in each process; None leaves what was built as it is.
        grace_s: How long a process may take to end before it is killed.
        reload: Restart when a Python file below the current folder changes.
        host: Where the ports listen.
        metrics_port: None serves no metrics.
        health_port: None serves no probes.
        log_level: Of the processes.
    """

    target: str
    processes: int = 1
    concurrency: int | None = None
    grace_s: float = 28.0
    reload: bool = False
    host: str = "127.0.0.1"
    metrics_port: int | None = None
    health_port: int | None = None
    log_level: str = "info"


@dataclass(slots=True)
class Slot:
    """One place for a process, over all its lives."""

    row: int
    process: "subprocess.Popen[bytes] | None" = None
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    start_at_s: float = 0.0
    finished: bool = False


class Supervisor:
    """Runs until signalled, until everything has finished, or until it gives up."""

    def __init__(self, settings: SupervisorSettings) -> None:
        self._settings = settings
        self._slots = [Slot(row) for row in range(settings.processes)]
        self._folder = Path(tempfile.mkdtemp(prefix="conquiet-worker-"))
        self._metrics_folder = self._folder / "metrics"
        self._metrics_folder.mkdir()
        self._pulse = Pulse.create(self._folder / "pulse", settings.processes)
        self._endpoints: list[Endpoints] = []
        self._round_at_s = time.monotonic()
        self._stop = False
        self._announced = False

    def run(self) -> int:
        """Supervise; return the exit code."""
        try:
            self._listen()
            with install_termination_handlers(self._ask_stop, self._force) as handlers:
                code = self._supervise()
                return self._drain(code, handlers)
        finally:
            self._clean_up()

    def _ask_stop(self) -> None:
        self._stop = True

    def _force(self) -> None:
        """End the processes without more ado: a second signal. Runs in a signal handler; the rest goes its way."""
        for slot in self._slots:
            process = slot.process
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

    # ------------------------------------------------------------------ running
    def _supervise(self) -> int:
        watch = SourceWatch(Path.cwd()) if self._settings.reload else None
        next_look_s = 0.0
        while not self._stop:
            now_s = self._round_at_s = time.monotonic()
            for slot in self._slots:
                code = self._tend(slot, now_s)
                if code is not None:
                    return code
            if all(slot.finished for slot in self._slots):
                return 0
            if watch is not None and now_s >= next_look_s:
                next_look_s = now_s + _RELOAD_LOOK_S
                self._reload(watch)
            self._announce()
            time.sleep(_ROUND_S)
        return 0

    def _tend(self, slot: Slot, now_s: float) -> int | None:
        """Start the slot's process, or see to its end. Returns an exit code if the whole has to end."""
        process = slot.process
        if process is None:
            if not slot.finished and now_s >= slot.start_at_s:
                slot.process = self._start(slot.row)
            return None
        exit_code = process.poll()
        if exit_code is None:
            return None
        self._bury(slot)
        decision = slot.policy.decide(exit_code, now_s)
        match decision.next:
            case Next.FINISHED:
                slot.finished = True
            case Next.RESTART:
                slot.start_at_s = now_s + decision.delay_s
                _say(f"process {process.pid} {_end_of(exit_code)}; starting again in {decision.delay_s:.1f} s")
            case Next.CANNOT_START:
                return self._give_up(slot, NOT_DONE)
            case Next.GIVE_UP:
                _say(
                    f"process {process.pid} {_end_of(exit_code)}, {CRASHES} times within {WINDOW_S:g} s: giving up. "
                    "What it had in hand stays pending for others"
                )
                return self._give_up(slot, FAILED)
        return None

    def _give_up(self, slot: Slot, code: int) -> int | None:
        """End the whole; under ``reload`` wait for the next change: the file may have been saved half only."""
        if not self._settings.reload:
            return code
        slot.start_at_s = math.inf
        _say("waiting for the next change of a .py file")
        return None

    def _start(self, row: int) -> "subprocess.Popen[bytes]":
        settings = self._settings
        orders = Orders(settings.target, row, str(self._folder / "pulse"), settings.concurrency, settings.log_level)
        environment = dict(os.environ) | {
            VARIABLE: orders.encode(),
            "PROMETHEUS_MULTIPROC_DIR": str(self._metrics_folder),
        }
        environment.pop("NOTIFY_SOCKET", None)  # the supervisor speaks for all
        # A child inherits what is blocked here; it lets the signals through when it can answer them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            # A process group of its own: Ctrl-C on the terminal reaches the supervisor alone, which ends them in order.
            return subprocess.Popen(
                [sys.executable, "-m", "conquiet.cli.worker.child"],
                stdin=subprocess.PIPE,
                env=environment,
                process_group=0,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _bury(self, slot: Slot) -> None:
        process, slot.process = slot.process, None
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            if self._settings.metrics_port is not None:
                from prometheus_client.multiprocess import mark_process_dead

                mark_process_dead(process.pid, path=str(self._metrics_folder))  # type: ignore[no-untyped-call]

    def _reload(self, watch: SourceWatch) -> None:
        changed = watch.changed()
        if changed is None:
            return
        _say(f"{changed} changed; starting again")
        self._terminate()
        self._wait(self._settings.grace_s)
        for slot in self._slots:
            self._bury(slot)
            slot.policy, slot.finished, slot.start_at_s = RestartPolicy(), False, 0.0

    def _announce(self) -> None:
        if not self._announced and self._all_ready():
            self._announced = True
            notify_systemd("READY=1")
            _say(f"{len(self._slots)} processes ready")

    # ------------------------------------------------------------------ ending
    def _drain(self, code: int, handlers: TerminationHandlers) -> int:
        notify_systemd("STOPPING=1")
        self._terminate()
        self._wait(self._settings.grace_s)
        ends = [slot.process.returncode for slot in self._slots if slot.process is not None]
        if handlers.received is not None and set(ends) - GOOD_ENDS:
            _say("some processes did not end in good order; what they had in hand stays pending for others")
            return FAILED
        return code

    def _terminate(self) -> None:
        for slot in self._slots:
            if slot.process is not None and slot.process.poll() is None:
                slot.process.send_signal(signal.SIGTERM)

    def _wait(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        for slot in self._slots:
            if slot.process is None:
                continue
            try:
                slot.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _say(f"process {slot.process.pid} did not end within {grace_s:g} s and is killed")
                slot.process.kill()
                slot.process.wait()

    def _clean_up(self) -> None:
        for slot in self._slots:
            if slot.process is not None:
                if slot.process.poll() is None:
                    slot.process.kill()
                    slot.process.wait()
                self._bury(slot)
        for endpoint in self._endpoints:
            endpoint.close()
        self._pulse.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ------------------------------------------------------------------ being asked
    def _listen(self) -> None:
        settings = self._settings
        paths = {
            settings.health_port: {"/livez": self._livez, "/readyz": self._readyz},
        }
        if settings.metrics_port is not None:
            paths.setdefault(settings.metrics_port, {})["/metrics"] = lambda: metrics_of(str(self._metrics_folder))
        for port, answers in paths.items():
            if port is not None:
                self._endpoints.append(Endpoints(settings.host, port, answers))

    def _livez(self) -> Answer:
        alive = time.monotonic() - self._round_at_s < _STALE_ROUND_S or self._stop
        return as_json(200 if alive else 503, {"alive": alive})

    def _readyz(self) -> Answer:
        processes = [
            {"pid": slot.process.pid if slot.process else None, "ready": self._is_ready(slot)} for slot in self._slots
        ]
        ready = not self._stop and all(one["ready"] for one in processes)
        return as_json(200 if ready else 503, {"ready": ready, "processes": processes})

    def _all_ready(self) -> bool:
        return all(self._is_ready(slot) for slot in self._slots)

    def _is_ready(self, slot: Slot) -> bool:
        process = slot.process
        return process is not None and self._pulse.is_ready(slot.row, process.pid)


def _end_of(exit_code: int) -> str:
    if exit_code == SIGNALLED:
        return "was asked to end by somebody else"
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


def _say(sentence: str) -> None:
    typer.echo(f"conquiet: {sentence}", err=True)
