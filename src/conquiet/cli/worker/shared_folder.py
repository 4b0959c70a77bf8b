"""The temporary folder of a supervisor and its processes. It is removed even if the supervisor is killed.

The supervisor removes it at its end. After SIGKILL it cannot, so the last of its processes does: the supervisor and
each process hold a shared lock on a file of the folder, which the kernel releases when they die, and a process that
gets the lock alone is the last. If all are killed together, the folder stays.
"""

import contextlib
import fcntl
import os
import shutil
from pathlib import Path


class SharedFolder:
    """One use of the folder, from the creation of this object to ``leave()``.

    Args:
        file: A file of the folder.
    """

    def __init__(self, file: Path) -> None:
        self._folder = file.parent
        self._lock = os.open(file, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def leave(self) -> None:
        """End this use, and remove the folder if it was the last one."""
        # BlockingIOError: the supervisor or another process is still using it, and removes it later.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)
