"""Count the writes of a session: a write is a success once its transaction is committed.

    statement ran ──▶ waits for the end of the session ──COMMIT──▶ success
                                                       └─anything else──▶ error
    statement failed ──▶ error, immediately

The time of a statement is recorded when it ends.
"""

import re
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from conquiet.db.metrics import count_db_writes, observe_db_latency

# No identifier, so it is never the name of a table. The caller's SQL is not parsed for one: names that a program
# generates (a table for each customer) would be label values without bound.
SESSION: Final = "(session)"

WRITES: Final = frozenset({"insert", "update", "delete", "replace"})
OTHER: Final = "other"

_KEYWORD: Final = re.compile(r"(?:\s+|--[^\n]*\n|#[^\n]*\n|/\*(?!!).*?\*/|\()*([A-Za-z]+)", re.DOTALL)


@lru_cache(256)  # a program repeats its statements
def first_keyword(statement: str) -> str:
    """Return the first word of a statement in lower case, after blanks, comments and brackets; empty if none."""
    found = _KEYWORD.match(statement)
    return "" if found is None else found[1].lower()


class WriteCounts:
    """Hold the writes of one session until it is committed or rolled back."""

    def __init__(self) -> None:
        self._uncommitted: dict[tuple[str, str], int] = {}
        self._after_commit: list[Callable[[], None]] = []

    def measure(self, table: str, op_type: str, *, rows: int = 1) -> "_Measurement":
        """Return a block that times one write, and counts it as failed if it raises."""
        return _Measurement(self._uncommitted, table, op_type, rows)

    def after_commit(self, call: Callable[[], None]) -> None:
        """Call it once the session is committed; never if it is not. It must not raise."""
        self._after_commit.append(call)

    def flush(self, *, committed: bool) -> None:
        """Count the writes of the session, which has ended."""
        calls, self._after_commit = self._after_commit, []
        for call in calls if committed else ():
            call()
        for (table, op_type), rows in self._uncommitted.items():
            count_db_writes(table, op_type, "success" if committed else "error", rows)
        self._uncommitted.clear()


class _Measurement:
    __slots__ = ("_op_type", "_rows", "_started", "_table", "_uncommitted")

    # A class and not a generator: 3.3 µs per write against 5.6 µs, of 180 µs of a session's CPU time.
    def __init__(self, uncommitted: dict[tuple[str, str], int], table: str, op_type: str, rows: int) -> None:
        self._uncommitted, self._table, self._op_type, self._rows = uncommitted, table, op_type, rows

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        observe_db_latency(self._table, self._op_type, time.monotonic() - self._started)
        if error is None:
            key = (self._table, self._op_type)
            self._uncommitted[key] = self._uncommitted.get(key, 0) + self._rows
        else:
            count_db_writes(self._table, self._op_type, "error", self._rows)
