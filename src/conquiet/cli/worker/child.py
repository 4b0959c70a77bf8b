"""One worker process: imports the workers, runs them, reports their readiness and ends on a signal.

The supervisor holds the other end of its stdin. When that closes, for example because the supervisor died, the process
drains and ends. The last process of a dead supervisor removes its folder (``shared_folder``).

It starts with SIGTERM and SIGINT blocked and unblocks them once it has handlers for them. So a signal that arrives
earlier, even while Python itself starts, ends it in order: nothing is in flight yet.
"""

import asyncio
import inspect
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from conquiet.cli.errors import FAILED, NOT_DONE, CommandError, fix_of, report_error
from conquiet.cli.stdio import call_at_end_of_input
from conquiet.cli.worker.heartbeat_file import HeartbeatFile, ReadinessReasons
from conquiet.cli.worker.reachability import unreachable_server
from conquiet.cli.worker.restarts import ABANDONED, SIGNALLED, UNREACHABLE
from conquiet.cli.worker.shared_folder import SharedFolder
from conquiet.core.functions import is_coroutine_function
from conquiet.core.redaction import printable
from conquiet.errors import ConfigurationError, ConquietError, LifecycleError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from conquiet.core.lifecycle import Worker

_HEARTBEAT_S = 0.25


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """The settings of one process, passed in its environment: every user of the machine can read a command line."""

    target: str
    row: int
    folder: str
    concurrency: int | None
    log_level: str
    only: tuple[str, ...] = ()
    counts_messages: bool = False

    def encode(self) -> str:
        """Return the settings as text."""
        return json.dumps(asdict(self))


SETTINGS_VARIABLE = "CONQUIET_WORKER_SETTINGS"
SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})


class _StopDuringImport(BaseException):
    """Leaves the user's code at its import. A BaseException, as KeyboardInterrupt is, so that the code lets it pass."""


def _ignore(_signum: int, _frame: object) -> None:
    """Ignore a signal. SIG_IGN would be inherited by programs that a handler starts."""


class Child:
    """Runs workers side by side until all have ended. A request to stop may come before the workers are loaded."""

    def __init__(self, heartbeats: HeartbeatFile, row: int) -> None:
        self._workers: list[Worker] = []
        self._heartbeats = heartbeats
        self._row = row
        self._stopping = False
        self._loading = False
        self.was_ready = False
        """True if all workers were ready at the same time at least once."""
        self._reasons = ReadinessReasons(heartbeats.folder, row)

    def stop(self) -> None:
        """Request the stop of all workers. Only assigns. A second call changes nothing."""
        # A signal, a failed worker and the death of the supervisor each call this. A second stop() would force a worker
        # to abort its handlers.
        if self._stopping:
            return
        self._stopping = True
        for worker in self._workers:
            worker.stop()

    @property
    def abandoned(self) -> int:
        """Handlers that did not end within their grace period."""
        return sum(worker.abandoned for worker in self._workers)

    def interrupt(self) -> None:
        """Stop the workers, and interrupt an import, which may take long. Runs inside a signal handler."""
        # systemd signals the whole control group by default. The signal of the supervisor is then the second, and must
        # not abort handlers: the supervisor decides how long it waits before it kills.
        for signum in SIGNALS:
            signal.signal(signum, _ignore)
        self.stop()
        if self._loading:
            raise _StopDuringImport

    def load(self, target: str, concurrency: int | None, only: "Sequence[str]" = ()) -> "list[Worker]":
        """Unblock the signals and import the workers. Return an empty list if a stop was requested meanwhile."""
        from conquiet.cli.worker.worker_loader import load_workers

        try:
            try:
                self._loading = True
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                return load_workers(target, concurrency=concurrency, only=only)
            finally:
                self._loading = False
        except _StopDuringImport:  # outside: it may come at any step of the inner one
            return []

    async def run(self, workers: "list[Worker]") -> None:
        """Work until stopped. If one worker fails, the others are stopped in good order and its error is raised."""
        self._workers = workers
        tasks = [asyncio.create_task(self._run_one(worker), name=worker.name) for worker in workers]
        heartbeat = asyncio.create_task(self._send_heartbeats())
        try:
            results = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            heartbeat.cancel()
            self._heartbeats.write(self._row, pid=os.getpid(), ready=False)
        failure = next((result for result in results if isinstance(result, BaseException)), None)
        if failure is not None:
            raise failure

    async def _run_one(self, worker: "Worker") -> None:
        if self._stopping:
            return
        try:
            await _run_and_close(worker)
        except LifecycleError:
            # A worker that was stopped between the check above and its start refuses to start.
            if not self._stopping:
                self.stop()
                raise
        except BaseException:
            self.stop()
            raise

    async def _send_heartbeats(self) -> None:
        while True:
            states = [(worker.name, worker.health()) for worker in self._workers]
            reasons = {name: health.reason for name, health in states if not health.ready}
            if self._stopping:
                reasons.setdefault("worker", "draining")
            self.was_ready = self.was_ready or not reasons
            handled = sum(health.handled or 0 for _, health in states)
            self._heartbeats.write(self._row, pid=os.getpid(), ready=not reasons, handled=handled)
            self._reasons.write(reasons)
            await asyncio.sleep(_HEARTBEAT_S)


async def _run_and_close(worker: "Worker") -> None:
    """Run a worker to its end, a synchronous one in a thread, and release its connections."""
    try:
        await (worker.run() if is_coroutine_function(worker.run) else asyncio.to_thread(worker.run))
    finally:
        closing = worker.close()
        if inspect.isawaitable(closing):
            await closing


def loop_factory() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    """Return uvloop's factory of event loops if the extra ``fast`` is installed; None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def main() -> int:
    """Run one process: 0 when all workers have finished, 1 after a failure, 2 if it could not start.

    After a graceful stop by a signal it is ``SIGNALLED``: there was more to do. With abandoned handlers it is
    ``ABANDONED``. If a server could not be reached at the start it is ``UNREACHABLE``.
    """
    settings = ChildSettings(**json.loads(os.environ.pop(SETTINGS_VARIABLE)))
    folder = SharedFolder(Path(settings.folder))
    try:
        return _run(settings)
    finally:
        folder.leave()


def _run(settings: ChildSettings) -> int:
    from conquiet.cli.logs import set_up_logging
    from conquiet.signals import install_termination_handlers

    set_up_logging(settings.log_level)
    child = Child(HeartbeatFile(Path(settings.folder)), settings.row)
    try:
        with install_termination_handlers(child.interrupt) as handlers:
            workers = child.load(settings.target, settings.concurrency, settings.only)
            if workers:
                if settings.counts_messages and all(worker.health().handled is None for worker in workers):
                    raise CommandError(
                        f"--max-messages counts messages that handlers have handled, and {settings.target} runs none",
                        fix="give --max-age-s or --max-rss-mb instead",
                    )
                call_at_end_of_input(child.stop)
                with asyncio.Runner(loop_factory=loop_factory()) as runner:
                    runner.run(child.run(workers))
            if child.abandoned:
                report_error(
                    f"{child.abandoned} handlers did not end within the grace period and were abandoned; "
                    "their messages will be delivered again"
                )
                return ABANDONED
            return 0 if handlers.received is None else SIGNALLED
    except Exception as error:  # noqa: BLE001 - reported below
        server = None if child.was_ready else unreachable_server(error)
        if server is not None:
            unreachable_note(Path(settings.folder), settings.row).write_text(server)
            return UNREACHABLE
        return _failed(error, settings.target)


def unreachable_note(folder: Path, row: int) -> Path:
    """Return the file in which a process names the server it could not reach."""
    return folder / f"unreachable-{row}"


def _failed(error: Exception, target: str) -> int:
    """Report what went wrong and return the exit code."""
    if isinstance(error, CommandError | ConfigurationError):
        report_error(str(error), fix_of(error))
        return NOT_DONE
    if isinstance(error, ModuleNotFoundError) and error.name:  # the driver of a URL, for instance
        report_error(f"{target} needs {printable(error.name)!r}", f"install {printable(error.name)}")
        return NOT_DONE  # no restart brings it
    if isinstance(error, ConquietError):
        report_error(str(error))
    else:  # raised by the user's code: its text may hold parts of a message, so only its class is shown
        report_error(f"{target} ended with {printable(type(error).__name__)}", "run with --debug for the traceback")
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
