"""The readiness of each worker process: a row in a small file that the processes and the supervisor map into memory.

A row that is not renewed counts as not ready: a blocked event loop renews nothing.
"""

import contextlib
import json
import mmap
import struct
import time
from collections.abc import Mapping
from pathlib import Path

_NAME = "heartbeats"
_ROW = struct.Struct("=qqdq")
FRESH_S = 3.0


class HeartbeatFile:
    """The rows of all processes. Their times are of the machine's monotonic clock, which the processes share.

    Args:
        folder: The folder of the worker.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with (folder / _NAME).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @classmethod
    def create(cls, folder: Path, rows: int) -> "HeartbeatFile":
        """Create the file and open it."""
        (folder / _NAME).write_bytes(bytes(_ROW.size * rows))
        return cls(folder)

    def write(self, row: int, *, pid: int, ready: bool, handled: int = 0) -> None:
        """Renew the row of this process; ``handled`` is how many messages it has handled."""
        _ROW.pack_into(self._memory, row * _ROW.size, pid, int(ready), time.monotonic(), handled)

    def is_ready(self, row: int, pid: int) -> bool:
        """Return whether that process reported itself ready less than ``FRESH_S`` ago."""
        row_pid, ready, at, _ = _ROW.unpack_from(self._memory, row * _ROW.size)
        return row_pid == pid and bool(ready) and time.monotonic() - at < FRESH_S

    def handled(self, row: int, pid: int) -> int:
        """Return how many messages that process has handled; 0 before its first report."""
        row_pid, _, _, handled = _ROW.unpack_from(self._memory, row * _ROW.size)
        return int(handled) if row_pid == pid else 0

    def close(self) -> None:
        """Unmap the file."""
        self._memory.close()


class ReadinessReasons:
    """A small file with the reasons why parts of one process are not ready, written when they change.

    Args:
        folder: The folder of the worker.
        row: Row of the process.
    """

    def __init__(self, folder: Path, row: int) -> None:
        self._path = folder / f"reasons-{row}"
        self._written: dict[str, str] | None = None

    def write(self, reasons: Mapping[str, str]) -> None:
        """Replace the content of the file. Never raises: a full disk must not end a worker."""
        if reasons == self._written:
            return
        self._written = dict(reasons)
        half = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            half.write_text(json.dumps(self._written))
            half.replace(self._path)

    def read(self) -> dict[str, str]:
        """Return the reasons by the name of the part; empty if there are none."""
        try:
            found: dict[str, str] = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return found
