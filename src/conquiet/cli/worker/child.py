"""One worker process: imports the object, runs it, says how it is doing, ends when asked.

Started by the supervisor, which holds the other end of its stdin: when that closes, also by the
supervisor's death, the process stops in good order.

It is born with SIGTERM and SIGINT blocked and lets them through once it has handlers for them: asked to end
before it has begun, even while Python itself starts, it ends in good order, because it had nothing in hand.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from conquiet.cli.failures import FAILED, NOT_DONE, CommandError, complain
from conquiet.cli.worker.pulse import Pulse
from conquiet.cli.worker.restarts import SIGNALLED
from conquiet.errors import ConfigurationError, ConquietError, LifecycleError
from conquiet.kernel.redaction import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from conquiet.cli.worker.runnables import Runnable

_BEAT_S = 0.25


@dataclass(frozen=True, slots=True)
class Orders:
    """What a process has to know. Travels in its environment: a command line is for everyone to read."""

    target: str
    row: int
    pulse: str
    concurrency: int | None
    log_level: str

    def encode(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))


VARIABLE = "CONQUIET_WORKER_ORDERS"
SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})


class _AskedEarly(BaseException):
    """Leaves the user's code at its import: we were asked to end. Like KeyboardInterrupt, it is nobody's to catch."""


class Child:
    """Runs several things side by side until all have ended. What it runs comes later than the wish to end it may."""

    def __init__(self, pulse: Pulse, row: int) -> None:
        self._runnables: list[Runnable] = []
        self._pulse = pulse
        self._row = row
        self._stopping = False
        self._loading = False

    def stop(self) -> None:
        """Ask everything to end. Only assigns."""
        self._stopping = True
        for runnable in self._runnables:
            runnable.stop()

    def interrupt(self) -> None:
        """Do as ``stop`` does, and leave an import that may take long. Runs inside a signal handler."""
        self.stop()
        if self._loading:
            raise _AskedEarly

    def load(self, target: str, concurrency: int | None) -> "list[Runnable]":
        """Let the signals through and run the user's code that builds what is run; empty if asked to end meanwhile."""
        from conquiet.cli.worker.targets import load_runnables

        try:
            try:
                self._loading = True
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                return load_runnables(target, concurrency=concurrency)
            finally:
                self._loading = False
        except _AskedEarly:  # outside: it may come at any step of the inner one
            return []

    async def run(self, runnables: "list[Runnable]") -> None:
        """Work until stopped. If one fails, the others are stopped in good order and its error is raised."""
        self._runnables = runnables
        tasks = [asyncio.create_task(self._run_one(one), name=one.name) for one in self._runnables]
        beating = asyncio.create_task(self._beat())
        try:
            results = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            beating.cancel()
            self._pulse.beat(self._row, pid=os.getpid(), ready=False)
        failure = next((result for result in results if isinstance(result, BaseException)), None)
        if failure is not None:
            raise failure

    async def _run_one(self, runnable: "Runnable") -> None:
        if self._stopping:
            return
        try:
            await runnable.run()
        except LifecycleError:
            # Asked to end between our look and its start, it refuses to start: that is the end we asked for.
            if not self._stopping:
                self.stop()
                raise
        except BaseException:
            self.stop()
            raise

    async def _beat(self) -> None:
        while True:
            ready = not self._stopping and all(one.ready() for one in self._runnables)
            self._pulse.beat(self._row, pid=os.getpid(), ready=ready)
            await asyncio.sleep(_BEAT_S)


def hold_leash(child: Child) -> None:
    """Stop when the supervisor lets go of our stdin."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        child.stop()

    threading.Thread(target=watch, name="conquiet-leash", daemon=True).start()


def loop_factory() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    """Return what makes uvloop's event loop where the extra ``fast`` is installed, else None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def main() -> int:
    """Run one process: 0 when it is through, 1 after a failure, 2 if it could not even start.

    After a stop in good order that a signal asked for it is ``SIGNALLED``: whoever sent it, we had more to do.
    """
    from conquiet.cli.worker.logs import set_up_logging
    from conquiet.signals import install_termination_handlers

    orders = Orders(**json.loads(os.environ.pop(VARIABLE)))
    set_up_logging(orders.log_level)
    child = Child(Pulse(Path(orders.pulse)), orders.row)
    try:
        with install_termination_handlers(child.interrupt) as handlers:
            runnables = child.load(orders.target, orders.concurrency)
            if runnables:
                hold_leash(child)
                with asyncio.Runner(loop_factory=loop_factory()) as runner:
                    runner.run(child.run(runnables))
            return 0 if handlers.received is None else SIGNALLED
    except CommandError as error:
        complain(str(error), error.fix)
        return NOT_DONE
    except ConfigurationError as error:
        complain(str(error))
        return NOT_DONE
    except ConquietError as error:
        complain(str(error))
        return FAILED
    except Exception as error:  # noqa: BLE001 - whatever the user's code raised: said, and left to the supervisor
        # The text may hold anything of a message: its class is what may be shown.
        complain(f"{orders.target} ended with {printable(type(error).__name__)}", "see the traceback with --debug")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
