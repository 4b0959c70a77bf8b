"""Share the workers' counters and the orchestrator's command in a small memory-mapped file.

It survives a killed worker, which a buffered pipe does not. Each worker writes one row and the orchestrator writes
the header, so no lock is needed.
"""

import mmap
import struct
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct("=2q")
_ROW = struct.Struct("=6q")
NONE = -1
ALL = -2


class DemoWorkerState(IntEnum):
    """State of a worker."""

    STARTING = 0
    WORKING = 1
    FROZEN = 2  # committed, and waiting to be killed before it acknowledges
    DONE = 3
    WAITING = 4  # holds no message and may not read yet


class ControlState(NamedTuple):
    """Command of the orchestrator. A worker checks it before each batch and after each COMMIT.

    Attributes:
        reader: The row that may read, NONE or ALL.
        freeze: The row that must stop after its next COMMIT, or NONE.
    """

    reader: int = NONE
    freeze: int = NONE

    def allows(self, row: int) -> bool:
        """Return whether the worker of this row may read."""
        return self.reader in (ALL, row)


class DemoWorkerRow(NamedTuple):
    """One worker's counters, over all its processes."""

    pid: int = 0
    state: int = DemoWorkerState.STARTING
    handled: int = 0
    duplicates: int = 0
    recovered: int = 0
    in_flight: int = 0


class SharedState:
    """The rows of all workers. They are read at slightly different moments, so no result is computed from them."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @classmethod
    def create(cls, path: Path, rows: int) -> "SharedState":
        """Create and open the file with empty rows and a command that allows no worker to read."""
        path.write_bytes(_HEAD.pack(*ControlState()) + bytes(_ROW.size * rows))
        return cls(path)

    @property
    def command(self) -> ControlState:
        """The newest command."""
        return ControlState(*_HEAD.unpack_from(self._memory))

    @command.setter
    def command(self, command: ControlState) -> None:
        _HEAD.pack_into(self._memory, 0, *command)

    def read(self, row: int) -> DemoWorkerRow:
        """Return one worker's row."""
        return DemoWorkerRow(*_ROW.unpack_from(self._memory, _HEAD.size + row * _ROW.size))

    def write(self, row: int, values: DemoWorkerRow) -> None:
        """Write one worker's row."""
        _ROW.pack_into(self._memory, _HEAD.size + row * _ROW.size, *values)

    def close(self) -> None:
        """Unmap the file. The orchestrator removes it."""
        self._memory.close()
