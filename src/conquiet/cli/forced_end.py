"""End an interrupted command even if closing its connections blocks.

Ctrl-C and SIGTERM raise an exception between two bytecodes of the main thread, possibly just after a library has
acquired a lock and before it has recorded that it must release it. Closing the client then waits for that lock, as
observed in redis-py's connection pool. The server closes the connections of an ended process.
"""

import _thread
import contextlib
import os
import signal
import time
from collections.abc import Iterator

_AFTER_S = 10.0
_armed = False


def arm() -> None:
    """Allow this module to end the process. Call it only if the process runs only the command."""
    global _armed  # noqa: PLW0603 - one process, one command
    _armed = True


@contextlib.contextmanager
def force_end_after_interrupt() -> Iterator[None]:
    """End the process ten seconds after an interruption of the block, with the exit code of the interruption."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        if _armed:
            code = error.code if isinstance(error, SystemExit) else None
            with contextlib.suppress(RuntimeError):  # no thread available
                _thread.start_new_thread(_end, (code if isinstance(code, int) else 128 + signal.SIGINT,))
        raise


def _end(code: int) -> None:
    time.sleep(_AFTER_S)
    os._exit(code)
