"""Record the steps of a process of a storm, so that the records survive ``kill -9``.

One file for each process, opened for appending; each record is one ``write`` of one line. A forked process writes to
its own file. Only the standard library is used: workers import this before anything else.

    record = Recorder(folder)
    record("deliver", id="17", n=1)

The format is described in docs/history-format.md.
"""

import json
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_DUMP = json.JSONEncoder(separators=(",", ":")).encode


class Recorder:
    """Appends records to the file of its process; a recorder without a folder writes nothing."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.fspath(folder)
        self._process = self._file = -1

    def __call__(self, op: str, **fields: Any) -> None:
        """Write one record."""
        if not self.folder:
            return
        process = os.getpid()
        if process != self._process:
            # The file of a parent is left alone, also by its number: the child shares the position with it.
            path = Path(self.folder) / f"{process}.jsonl"
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._process = process
        line = {"op": op, "t": round(time.monotonic(), 6), "p": process, **fields}
        os.write(self._file, (_DUMP(line) + "\n").encode())

    def watch(self, limit_s: float) -> None:
        """Note from now on, in a thread, when this process got no processor for longer than that."""
        threading.Thread(target=self._watch, args=(limit_s,), daemon=True).start()

    def _watch(self, limit_s: float) -> None:
        while True:
            before = time.monotonic()
            time.sleep(0.01)
            if (now := time.monotonic()) - before > limit_s:
                self("stall", began=round(before, 6), until=round(now, 6))

    def close(self) -> None:
        """Close the file of this process."""
        if self._process == os.getpid():
            os.close(self._file)
        self._process = self._file = -1


def packed(numbers: Iterable[int]) -> list[list[int]]:
    """Return numbers in their order as pairs [first, end], one for each run without a gap: for ``ids``, ``effects``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1][1] += 1
        else:
            found.append([number, number + 1])
    return found


def merge(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the records of all processes by time. A last line that a kill has cut short is left out."""
    found: list[dict[str, Any]] = []
    for path in sorted(Path(folder).glob("*.jsonl")):
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        found += map(json.loads, whole.splitlines())
    return sorted(found, key=lambda line: float(line["t"]))
