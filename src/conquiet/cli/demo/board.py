"""What the workers say about themselves: a small file of counters, mapped into memory.

A pipe would be simpler, but what a killed worker wrote into a pipe and what it still had in hand
cannot be told apart. Each worker writes its own row only, so no lock is needed.
"""

import mmap
import struct
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_ROW = struct.Struct("=8q")


class State(IntEnum):
    """Where a worker is."""

    STARTING = 0
    WORKING = 1
    FROZEN = 2  # committed, and waiting to be killed before it acknowledges
    DONE = 3


class Row(NamedTuple):
    """One worker's counters, over all its lives."""

    pid: int = 0
    state: int = State.STARTING
    handled: int = 0
    duplicates: int = 0
    recovered: int = 0
    in_hand: int = 0


class Board:
    """The rows of all workers. Numbers are of slightly different moments; the ledger does not use them for its sum."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @classmethod
    def create(cls, path: Path, rows: int) -> "Board":
        """Make the file with empty rows and open it."""
        path.write_bytes(bytes(_ROW.size * rows))
        return cls(path)

    def read(self, row: int) -> Row:
        """Return one worker's row."""
        return Row(*_ROW.unpack_from(self._memory, row * _ROW.size)[: len(Row._fields)])

    def write(self, row: int, values: Row) -> None:
        """Put one worker's row."""
        _ROW.pack_into(self._memory, row * _ROW.size, *values, 0, 0)

    def close(self) -> None:
        """Unmap the file; who removes it is the one who made it."""
        self._memory.close()
