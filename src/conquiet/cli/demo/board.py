"""What the workers say about themselves and what they are called to: a small file, mapped into memory.

A pipe would be simpler, but what a killed worker wrote into a pipe and what it still had in hand
cannot be told apart. Each worker writes its own row and the conductor writes the head, so no lock is needed.
"""

import mmap
import struct
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct("=2q")
_ROW = struct.Struct("=8q")
NOBODY = -1
EVERYBODY = -2


class State(IntEnum):
    """Where a worker is."""

    STARTING = 0
    WORKING = 1
    FROZEN = 2  # committed, and waiting to be killed before it acknowledges
    DONE = 3
    WAITING = 4  # holds nothing and reads nothing until it is called to


class Call(NamedTuple):
    """What the conductor wants now; a worker looks before each batch and after each COMMIT.

    Attributes:
        reader: The row that may read, NOBODY or EVERYBODY.
        freeze: The row that is to stand still after its next COMMIT, or NOBODY.
    """

    reader: int = NOBODY
    freeze: int = NOBODY

    def admits(self, row: int) -> bool:
        """Tell whether the worker of this row may read."""
        return self.reader in (EVERYBODY, row)


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
        """Make the file with empty rows, on which nobody may read yet, and open it."""
        path.write_bytes(_HEAD.pack(*Call()) + bytes(_ROW.size * rows))
        return cls(path)

    @property
    def call(self) -> Call:
        """What the conductor called out last."""
        return Call(*_HEAD.unpack_from(self._memory))

    @call.setter
    def call(self, call: Call) -> None:
        _HEAD.pack_into(self._memory, 0, *call)

    def read(self, row: int) -> Row:
        """Return one worker's row."""
        return Row(*_ROW.unpack_from(self._memory, _HEAD.size + row * _ROW.size)[: len(Row._fields)])

    def write(self, row: int, values: Row) -> None:
        """Put one worker's row."""
        _ROW.pack_into(self._memory, _HEAD.size + row * _ROW.size, *values, 0, 0)

    def close(self) -> None:
        """Unmap the file; who removes it is the one who made it."""
        self._memory.close()
