"""The temporary folder of a supervisor and its processes. It is removed even if the supervisor is killed.

The supervisor removes it at its end. After SIGKILL it cannot, so the last of its processes does: the supervisor and
each process hold a shared lock on a file of the folder, which the kernel releases when they die, and a process that
gets the lock alone is the last. If all are killed together, the next supervisor of the same user removes the folder:
it gets the lock too. A process id would prove nothing, because another process may have it by then.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final, Self

_PREFIX: Final = "conquiet-worker-"
_LOCK: Final = "lock"


class SharedFolder:
    """One use of the folder, from the creation of this object to ``leave()``.

    Args:
        path: An existing folder.
        flags: ``os.O_CREAT`` for its first use. A later one must find the lock that the others hold.
    """

    def __init__(self, path: Path, flags: int = 0) -> None:
        self.path = path
        self._lock = os.open(path / _LOCK, os.O_RDWR | flags, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    @classmethod
    def create(cls) -> Self:
        """Create a folder, and remove folders that no process uses any more."""
        remove_unused()
        while True:
            created = cls(Path(tempfile.mkdtemp(prefix=_PREFIX)), os.O_CREAT)
            if os.fstat(created._lock).st_nlink:
                return created
            # Another supervisor found the folder before it was locked here, and has removed it.
            os.close(created._lock)

    def leave(self) -> None:
        """End this use, and remove the folder if it was the last one."""
        _remove_if_unused(self.path, self._lock)


def remove_unused() -> None:
    """Remove the folders of supervisors that were killed together with all their processes."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # FileNotFoundError: not locked yet, or removed meanwhile. PermissionError: of another user.
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.geteuid():  # root may open the folders of all users
                _remove_if_unused(path, os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW))


def _remove_if_unused(path: Path, lock: int) -> None:
    """Remove a folder if no other process has its lock, and close the lock."""
    # BlockingIOError: the supervisor or another process is still using it, and removes it later.
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    os.close(lock)
