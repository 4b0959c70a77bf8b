"""What each worker process says about itself: a row in a small file, mapped into memory by both sides.

A row that is not renewed counts as not ready, whatever it says: a blocked event loop renews nothing.
"""

import mmap
import struct
import time
from pathlib import Path

_ROW = struct.Struct("=qqd")
FRESH_S = 3.0


class Pulse:
    """The rows of all processes. The clock is the machine's monotonic one, which they share."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @classmethod
    def create(cls, path: Path, rows: int) -> "Pulse":
        """Make the file and open it."""
        path.write_bytes(bytes(_ROW.size * rows))
        return cls(path)

    def beat(self, row: int, *, pid: int, ready: bool) -> None:
        """Say that we are here, and whether we work."""
        _ROW.pack_into(self._memory, row * _ROW.size, pid, int(ready), time.monotonic())

    def is_ready(self, row: int, pid: int) -> bool:
        """Tell whether that very process said so, and lately."""
        said_pid, ready, at = _ROW.unpack_from(self._memory, row * _ROW.size)
        return said_pid == pid and bool(ready) and time.monotonic() - at < FRESH_S

    def close(self) -> None:
        """Unmap the file."""
        self._memory.close()
