"""Read the history of a storm, a file of JSON lines, into what the checks of check_history.py ask for.

Only the standard library is used. The format is described in docs/history-format.md.
"""

from __future__ import annotations

import json
import lzma
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

VERSION = 1
Line = dict[str, Any]


class Deliveries:
    """The deliveries of all messages. Most messages have one: that costs an entry, and a list only from the second on.

    A record of a batch is one object for all its messages, so a million messages fit into some hundred megabytes.
    """

    def __init__(self) -> None:
        self.count = 0
        self._first: dict[str, dict[str, Line]] = defaultdict(dict)
        self._all: dict[tuple[str, str], list[Line]] = {}

    def add(self, line: Line) -> None:
        """Add a record of one message, or of a batch."""
        stage = line.get("of", "")
        first = self._first[stage]
        for message in ids_of(line):
            self.count += 1
            if message in first:
                self._all.setdefault((stage, message), [first[message]]).append(line)
            else:
                first[message] = line

    def repeated(self) -> Iterator[tuple[str, str, list[Line]]]:
        """Return stage, message and records of messages that were delivered more than once."""
        for (stage, message), lines in self._all.items():
            yield stage, message, lines

    def __iter__(self) -> Iterator[tuple[str, str, list[Line]]]:
        for stage, messages in self._first.items():
            for message, line in messages.items():
                yield stage, message, self._all.get((stage, message)) or [line]


def expand(ids: Iterable[Any]) -> Iterator[str]:
    """Return the ids of a list. A pair in it is a range: from its first number to before its second."""
    for one in ids:
        if isinstance(one, list):
            yield from map(str, range(*one))
        else:
            yield str(one)


def ids_of(line: Line) -> Iterable[str]:
    """Return the messages of a record: of a batch, or one."""
    return expand(line["ids"]) if "ids" in line else (str(line["id"]),)


@dataclass(slots=True)
class History:
    """A history, sorted for the checks. Times are seconds since the storm began."""

    header: Line
    lines: int = 0
    ended: bool = False
    drained_s: float | None = None
    recovery_began_s: float | None = None
    enqueued: dict[str, Line] = field(default_factory=dict)
    order: list[tuple[str, str]] = field(default_factory=list)
    deliveries: Deliveries = field(default_factory=Deliveries)
    returned: dict[tuple[str, str], list[Line]] = field(default_factory=lambda: defaultdict(list))
    effects: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    commits: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    acks: list[Line] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    ticks: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    locks: list[Line] = field(default_factory=list)
    added: list[Line] = field(default_factory=list)
    counters: Line | None = None
    faults: list[Line] = field(default_factory=list)
    ends: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    stalls: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    errors: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    lost: dict[tuple[str, float], list[float]] = field(default_factory=lambda: defaultdict(list))
    armed: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    left: Line = field(default_factory=dict)
    leaked: Line = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def promise(self) -> Line:
        """Return what this storm has promised: the header's ``promise``."""
        found: Line = self.header.get("promise", {})
        return found

    @property
    def judges_commits(self) -> bool:
        """Return whether the storm has recorded each commit and each acknowledgement."""
        return bool(self.promise.get("commits"))


def read(path: Path) -> History:
    """Read a history, compressed or not."""
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
        return parse(file)


def parse(lines: Iterable[str]) -> History:
    """Sort the lines of a history. A line that cannot be understood becomes a problem, and that an anomaly."""
    history = History({})
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            op = line["op"]
        except (ValueError, TypeError, KeyError):
            history.problems.append(f"line {number} is no record: {text[:60]!r}")
            continue
        history.lines += 1
        if number == 1:
            if op != "header" or line.get("v") != VERSION:
                history.problems.append(f"the first line must be a header of version {VERSION}")
            history.header = line
        elif op in _RECORDS:
            try:
                _RECORDS[op](history, line)
            except (KeyError, TypeError, ValueError) as error:
                history.problems.append(f"line {number}: {op} without a valid {error}")
        else:
            history.problems.append(f"line {number}: unknown op {op!r}")
    if not history.ended:
        history.problems.append("the history has no end: the storm did not finish")
    return history


def _enqueue(history: History, line: Line) -> None:
    ids = map(str, range(*line["range"])) if "range" in line else [str(line["id"])]
    for message in ids:
        if message in history.enqueued:
            history.problems.append(f"message {message} was enqueued twice by the storm itself")
        history.enqueued[message] = line
        if "key" in line:
            history.order.append((str(line["key"]), message))


def _state(history: History, line: Line) -> None:
    if "effects" in line:
        history.effects[line.get("of", "")] += expand(line.pop("effects"))
    history.dead += map(str, line.get("dead", ()))
    history.left |= line.get("left", {})
    history.leaked |= line.get("leaked", {})
    for name, dues in line.get("ticks", {}).items():
        history.ticks[name] += dues
    if "counters" in line:
        history.counters = line


def _phase(history: History, line: Line) -> None:
    if line["name"] == "recovery":
        history.recovery_began_s = line["t"]


def _resume(history: History, line: Line) -> None:
    """Note in the last stop of the process when it ended."""
    stops = [each for each in history.faults if each.get("target") == line["target"] and each["kind"] == "SIGSTOP"]
    if stops and "until" not in stops[-1]:
        stops[-1]["until"] = line["t"]
    else:
        history.problems.append(f"process {line['target']} was resumed and had not been stopped")


def _return(history: History, line: Line) -> None:
    for message in ids_of(line):
        history.returned[(line.get("of", ""), message)].append(line)


def _commit(history: History, line: Line) -> None:
    """Keep the time of a message's first commit."""
    if history.judges_commits:
        first = history.commits[line.get("of", "")]
        for message in ids_of(line):
            first[message] = min(line["t"], first.get(message, line["t"]))


def _ack(history: History, line: Line) -> None:
    if history.judges_commits:
        history.acks.append(line)


_RECORDS: dict[str, Callable[[History, Line], None]] = {
    "enqueue": _enqueue,
    "deliver": lambda h, line: h.deliveries.add(line),
    "effect": lambda h, line: h.effects[line.get("of", "")].append(str(line["id"])),
    "retry": _return,
    "release": _return,
    "commit": _commit,
    "ack": _ack,
    "dead": lambda h, line: h.dead.append(str(line["id"])),
    "cancel": lambda h, line: h.cancelled.add(str(line["id"])) if line["ok"] else None,
    "tick": lambda h, line: h.ticks[line["name"]].append(int(line["due"])),
    "lock": lambda h, line: h.locks.append(line),
    "unlock": lambda h, line: h.locks.append(line),
    "add": lambda h, line: h.added.append(line),
    "fault": lambda h, line: h.faults.append(line),
    "resume": _resume,
    "lost": lambda h, line: h.lost[(str(line["p"]), line["link"])].append(line["t"]),
    "exit": lambda h, line: h.ends[str(line["target"])].append(line["t"]),
    "error": lambda h, line: h.errors[str(line["p"])].append(line["t"]),
    "stall": lambda h, line: h.stalls[str(line["p"])].append(line),
    "armed": lambda h, line: h.armed.update({line["point"]: line.get("times", 1)}),
    "reached": lambda h, line: h.reached.update({line["point"]: 1}),
    "phase": _phase,
    "drained": lambda h, line: setattr(h, "drained_s", line["t"]),
    "state": _state,
    "end": lambda h, _: setattr(h, "ended", True),
}
