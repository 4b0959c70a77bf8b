"""Start worker processes, restart them when they die, and end them on a signal. Imports no code of the user.

RUNNING ──signal──▶ DRAINING: each process gets SIGTERM and the grace period, then (or at a second signal) SIGKILL
   │
   └─ a process ended unexpectedly: restart it with backoff, give up (see ``restarts``), or wait for a changed file
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from conquiet.cli.errors import FAILED, NOT_DONE
from conquiet.cli.logs import report
from conquiet.cli.worker.child import SETTINGS_VARIABLE, SIGNALS, ChildSettings, unreachable_note
from conquiet.cli.worker.endpoints import Endpoints, Paths, Response, json_response, metrics_response
from conquiet.cli.worker.heartbeat_file import HeartbeatFile, ReadinessReasons
from conquiet.cli.worker.notify import notify_systemd
from conquiet.cli.worker.recycling import draw_share, rss_bytes
from conquiet.cli.worker.reload import SourceWatch
from conquiet.cli.worker.restarts import (
    ABANDONED,
    CRASHES,
    GRACEFUL_EXITS,
    SIGNALLED,
    WINDOW_S,
    Decision,
    RestartAction,
    RestartPolicy,
)
from conquiet.cli.worker.shared_folder import SharedFolder
from conquiet.cli.worker.supervisor_settings import SupervisorSettings
from conquiet.signals import TerminationHandlers, install_termination_handlers

_ROUND_S = 0.1
_RELOAD_CHECK_S = 0.5
_STALE_ROUND_S = 10.0
_MEASURE_S = 0.5


@dataclass(slots=True)
class SupervisedProcess:
    """One process and its successors."""

    row: int
    process: "subprocess.Popen[bytes] | None" = None
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    start_at_s: float = 0.0
    finished: bool = False
    started_at_s: float = 0.0
    share: float = 1.0
    kill_at_s: float = math.inf
    draining: bool = False
    first_rss: int = 0

    @property
    def is_running(self) -> bool:
        """True while its process runs."""
        return self.process is not None and self.process.poll() is None


class ProcessSupervisor:
    """Runs until signalled, until everything has finished, or until it gives up."""

    def __init__(self, settings: SupervisorSettings) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._workers = [
            SupervisedProcess(row, policy=RestartPolicy(settings.wait_s)) for row in range(settings.processes)
        ]
        self._folder = SharedFolder.create()
        self._metrics_folder = self._folder.path / "metrics"
        self._metrics_folder.mkdir()
        self._heartbeats = HeartbeatFile.create(self._folder.path, settings.processes)
        self._endpoints: list[Endpoints] = []
        self._round_at_s = time.monotonic()
        self._stop = False
        self._announced = False
        self._reported: set[str] = set()
        self._recycled: SupervisedProcess | None = None
        self._measured_at_s = 0.0

    def run(self) -> int:
        """Supervise; return the exit code."""
        try:
            self._listen()
            report(f"starting {self._settings.target} in {len(self._workers)} processes")
            with install_termination_handlers(self._request_stop, self._force) as handlers:
                code = self._drain(self._supervise(), handlers)
                report(f"stopped with exit code {code}")
                return code
        finally:
            self._clean_up()

    def _request_stop(self) -> None:
        self._stop = True

    def _force(self) -> None:
        """Kill the processes after a second signal. Runs in a signal handler; the normal end follows."""
        for process in self._processes():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

    def _processes(self) -> "list[subprocess.Popen[bytes]]":
        return [worker.process for worker in self._workers if worker.process is not None]

    # ------------------------------------------------------------------ running
    def _supervise(self) -> int:
        watch = SourceWatch(Path.cwd()) if self._settings.reload else None
        next_check_s = 0.0
        while not self._stop:
            now_s = self._round_at_s = time.monotonic()
            for worker in self._workers:
                code = self._supervise_one(worker, now_s)
                if code is not None:
                    return code
            if all(worker.finished for worker in self._workers):
                return 0
            if watch is not None and now_s >= next_check_s:
                next_check_s = now_s + _RELOAD_CHECK_S
                self._reload(watch)
            self._announce()
            if self._limits.is_set:
                self._recycle(now_s)
            time.sleep(_ROUND_S)
        return 0

    def _supervise_one(self, worker: SupervisedProcess, now_s: float) -> int | None:
        """Start a process, or handle its end. Return an exit code if the supervisor has to end."""
        process = worker.process
        if process is None:
            self._start_if_due(worker, now_s)
            return None
        exit_code = process.poll()
        if exit_code is None:
            return None
        self._reap(worker)
        # A drained process is replaced immediately, with any exit code.
        decision = Decision(RestartAction.REPLACE) if worker.draining else worker.policy.decide(exit_code, now_s)
        match decision.action:
            case RestartAction.FINISHED:
                worker.finished = True
            case RestartAction.REPLACE:
                worker.start_at_s = now_s
            case RestartAction.RESTART:
                worker.start_at_s = now_s + decision.delay_s
                report(f"process {process.pid} {_describe_exit(exit_code)}; restarting in {decision.delay_s:.1f} s")
            case RestartAction.WAIT:
                worker.start_at_s = now_s + decision.delay_s
                self._report_once(
                    f"{self._unreachable_server(worker)} cannot be reached; waiting up to {self._settings.wait_s:g} s"
                )
            case RestartAction.UNREACHABLE:
                server = self._unreachable_server(worker)
                report(f"{server} could not be reached within {self._settings.wait_s:g} s: giving up")
                return self._give_up(worker, NOT_DONE)
            case RestartAction.CANNOT_START:
                return self._give_up(worker, NOT_DONE)
            case RestartAction.GIVE_UP:
                report(
                    f"process {process.pid} {_describe_exit(exit_code)}, {CRASHES} times within {WINDOW_S:g} s: giving "
                    "up. Its messages in flight stay pending for other workers"
                )
                return self._give_up(worker, FAILED)
        return None

    def _start_if_due(self, worker: SupervisedProcess, now_s: float) -> None:
        if not worker.finished and now_s >= worker.start_at_s:
            worker.process = self._start(worker.row)
            worker.started_at_s, worker.share, worker.draining, worker.first_rss = now_s, draw_share(), False, 0

    def _recycle(self, now_s: float) -> None:
        """Drain a process that has reached a limit. The next one has to wait until its replacement is ready."""
        worker = self._recycled
        if worker is not None:
            if worker.draining and worker.process is not None and now_s >= worker.kill_at_s:
                self._kill(worker.process)
                worker.kill_at_s = math.inf
            if worker.draining or not self._is_ready(worker):
                return
            self._recycled = None
        if now_s - self._measured_at_s < _MEASURE_S or not self._all_ready():
            return
        self._measured_at_s = now_s
        for worker in self._workers:
            process = worker.process
            if process is None:
                continue
            limits, used = self._limits, rss_bytes(process.pid)
            worker.first_rss = worker.first_rss or used
            if limits.is_below_start(worker.first_rss, worker.share):
                self._report_once(
                    f"a fresh process uses more than --max-rss-mb {limits.max_rss_mb}: each is replaced once a minute "
                    "only. Give a larger limit"
                )
            reason = limits.reason(
                handled=self._heartbeats.handled(worker.row, process.pid),
                rss_bytes=used,
                age_s=now_s - worker.started_at_s,
                share=worker.share,
                first_rss_bytes=worker.first_rss,
            )
            if reason:
                report(f"process {process.pid} {reason}; replacing it")
                self._recycled, worker.draining = worker, True
                worker.kill_at_s = now_s + self._settings.grace_s
                process.send_signal(signal.SIGTERM)
                return

    def _give_up(self, worker: SupervisedProcess, code: int) -> int | None:
        """End; under ``reload`` wait for the next change instead: the file may be half-saved."""
        if not self._settings.reload:
            return code
        worker.start_at_s = math.inf
        report("waiting for the next change of a .py file")
        return None

    def _unreachable_server(self, worker: SupervisedProcess) -> str:
        try:
            return unreachable_note(self._folder.path, worker.row).read_text()
        except OSError:
            return "a server"

    def _report_once(self, sentence: str) -> None:
        if sentence not in self._reported:
            self._reported.add(sentence)
            report(sentence)

    def _start(self, row: int) -> "subprocess.Popen[bytes]":
        settings = self._settings
        child = ChildSettings(
            settings.target,
            row,
            str(self._folder.path),
            settings.concurrency or None,
            settings.log_level,
            tuple(part.value for part in settings.only or ()),
            settings.max_messages > 0,
        )
        environment = dict(os.environ) | {
            SETTINGS_VARIABLE: child.encode(),
            "PROMETHEUS_MULTIPROC_DIR": str(self._metrics_folder),
        }
        environment.pop("NOTIFY_SOCKET", None)  # the supervisor notifies for all
        # A child inherits what is blocked here, and unblocks the signals once it can handle them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            # A separate process group: Ctrl-C on the terminal reaches only the supervisor, which drains the processes.
            return subprocess.Popen(
                [sys.executable, "-m", "conquiet.cli.worker.child"],
                stdin=subprocess.PIPE,
                env=environment,
                process_group=0,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _reap(self, worker: SupervisedProcess) -> None:
        process, worker.process = worker.process, None
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            if self._settings.metrics_port:
                from prometheus_client.multiprocess import mark_process_dead

                mark_process_dead(process.pid, path=str(self._metrics_folder))  # type: ignore[no-untyped-call]

    def _reload(self, watch: SourceWatch) -> None:
        changed = watch.changed()
        if changed is None:
            return
        report(f"{changed} changed; restarting")
        self._terminate()
        self._wait()
        for worker in self._workers:
            self._reap(worker)
            worker.policy, worker.finished, worker.start_at_s = RestartPolicy(self._settings.wait_s), False, 0.0

    def _announce(self) -> None:
        if not self._announced and self._all_ready():
            self._announced = True
            notify_systemd("READY=1")
            report(f"{len(self._workers)} processes ready")

    # ------------------------------------------------------------------ ending
    def _drain(self, code: int, handlers: TerminationHandlers) -> int:
        notify_systemd("STOPPING=1")
        if running := sum(worker.is_running for worker in self._workers):
            report(f"draining: {running} processes have {self._settings.grace_s:g} s to end")
        self._terminate()
        self._wait()
        exits = [process.returncode for process in self._processes()]
        if handlers.received is not None and set(exits) - GRACEFUL_EXITS:
            report("some processes did not end in order; their messages in flight stay pending for other workers")
            return FAILED
        return code

    def _terminate(self) -> None:
        for worker in self._workers:
            # A draining process already has its signal. A second signal would force it.
            if worker.process is not None and worker.is_running and not worker.draining:
                worker.process.send_signal(signal.SIGTERM)

    def _wait(self) -> None:
        deadline = time.monotonic() + self._settings.grace_s
        for process in self._processes():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._kill(process)
                process.wait()

    def _kill(self, process: "subprocess.Popen[bytes]") -> None:
        report(f"process {process.pid} did not end within {self._settings.grace_s:g} s and is killed")
        process.kill()

    def _clean_up(self) -> None:
        for worker in self._workers:
            if worker.process is not None:
                if worker.process.poll() is None:
                    worker.process.kill()
                    worker.process.wait()
                self._reap(worker)
        for endpoint in self._endpoints:
            endpoint.close()
        self._heartbeats.close()
        self._folder.leave()

    # ------------------------------------------------------------------ HTTP
    def _listen(self) -> None:
        settings = self._settings
        paths: dict[int, Paths] = {}
        if settings.health_port:
            paths[settings.health_port] = {"/livez": self._livez, "/readyz": self._readyz}
        if settings.metrics_port:
            metrics = partial(metrics_response, str(self._metrics_folder))
            paths.setdefault(settings.metrics_port, {})["/metrics"] = metrics
        for port, answers in paths.items():
            self._endpoints.append(Endpoints(settings.host, port, answers))

    def _livez(self) -> Response:
        alive = time.monotonic() - self._round_at_s < _STALE_ROUND_S or self._stop
        return json_response(200 if alive else 503, {"alive": alive})

    def _readyz(self) -> Response:
        processes = [
            {
                "pid": worker.process.pid if worker.process else None,
                "ready": self._is_ready(worker),
                "reasons": self._reasons(worker),
            }
            for worker in self._workers
        ]
        ready = not self._stop and all(one["ready"] for one in processes)
        return json_response(200 if ready else 503, {"ready": ready, "processes": processes})

    def _reasons(self, worker: SupervisedProcess) -> dict[str, str]:
        """Return which parts of a process are not ready, and why."""
        if self._is_ready(worker):
            return {}
        if worker.process is None:
            return {"process": "not running"}
        reasons = ReadinessReasons(self._folder.path, worker.row).read()
        return reasons or {"process": "starting, or its event loop is blocked: it has sent no heartbeat lately"}

    def _all_ready(self) -> bool:
        return all(self._is_ready(worker) for worker in self._workers)

    def _is_ready(self, worker: SupervisedProcess) -> bool:
        process = worker.process
        return process is not None and self._heartbeats.is_ready(worker.row, process.pid)


def _describe_exit(exit_code: int) -> str:
    if exit_code in {SIGNALLED, ABANDONED}:
        return "was stopped by another process"
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"
