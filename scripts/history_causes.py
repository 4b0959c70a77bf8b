"""Find the fault behind a second delivery, in the history of a storm. The standard library only.

A message is delivered again because its first delivery was not settled: the process was killed or stopped, the handler
returned it, or a server lost what it was told. The order of the two records may be the other one: a process that has
been sent a message and stands still runs its copy when it goes on, after another process was given the message.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from history_records import History, Line

SLACK_S = 1.0
"""A fault is written down before it strikes; the process it hits may still do this much."""


def kills(history: History) -> dict[str, list[float]]:
    """Return when each process was killed."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in history.faults:
        if line["kind"].startswith("kill"):
            found[str(line.get("target"))].append(line["t"])
    return found


def _name_of(stops: list[Line]) -> str:
    """Return what hit the process: the kind of a cut connection, or a stop."""
    return next((str(line["kind"]) for line in stops if line["kind"].startswith("connection")), "stop")


class Causes:
    """Finds the fault behind a second delivery."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._kills = kills(history)
        self._stops: dict[str, list[Line]] = defaultdict(list)
        self._common: list[Line] = []
        for line in history.faults:
            if line.get("scope", "process") == "process":
                self._stops[str(line.get("target"))].append(line)
            else:
                self._common.append(line)
        self._slow_s = history.header.get("claim_idle_s")
        self._known: dict[tuple[int, int], str | None] = {}

    def of(self, first: Line, second: Line, returned: Collection[Line] = ()) -> str | None:
        """Return what made ``second`` follow ``first``; None if nothing did.

        ``returned``: the records of the handler that returned this message. Without one the answer is the same for all
        messages of two batches, and is looked up.
        """
        if returned:
            return self._find(first, second, returned)
        pair = (id(first), id(second))
        if pair not in self._known:
            self._known[pair] = self._find(first, second, ())
        return self._known[pair]

    def _find(self, first: Line, second: Line, returned: Collection[Line]) -> str | None:
        began, again, process = first["t"], second["t"], str(first["p"])
        errors = self._history.errors.get(process, ())
        killed = any(t <= again and began <= t + SLACK_S for t in self._kills.get(process, ()))
        stopped = [line for line in self._stops.get(process, ()) if began - SLACK_S <= line["t"] <= again]
        struck = (
            str(line["kind"])
            for line in self._common
            if line["t"] <= again and began <= line.get("until", line["t"] + SLACK_S)
        )
        broken = any(line["t"] <= again for line in self._common)
        candidates: list[tuple[bool, str]] = [
            (killed, "kill"),
            (bool(stopped), _name_of(stopped)),
            (any(began <= line["t"] <= again for line in returned), "returned by the handler"),
            (any(began <= t <= again for t in self._history.ends.get(process, ())), "clean stop"),
            (bool(kind := next(struck, "")), kind),
            (broken and any(began <= t <= again for t in errors), "error after a server's fault"),
            (self._was_slow(first, again), "slower than the claim threshold"),
            (self._lost_its_connection(first, before=again), "connection lost after a fault"),
            (self._lost_its_connection(second, before=began), "sent before its connection was lost"),
            (self._stood_still(second, while_at=began), "sent before its process stood still"),
        ]
        return next((name for holds, name in candidates if holds), None)

    def _was_slow(self, first: Line, again: float) -> bool:
        """Return whether the first delivery took longer than allowed, or its process got no processor for a while."""
        if self._slow_s is None:
            return False
        since = float(first.get("since") or first["t"])
        stalls = self._history.stalls.get(str(first["p"]), ())
        if any(since <= line["until"] and line["t"] <= again for line in stalls):
            return True
        return bool(again - since >= self._slow_s)

    # ------------------------------------------------------------------ the connection that brought a message
    def _lost_its_connection(self, delivery: Line, *, before: float) -> bool:
        """Return whether the connection of a delivery was lost by a fault, which was before the other delivery.

        This needs no slack: however late a process gets to what it was sent, its connection was opened before the
        fault, and lost after it.
        """
        opened = delivery.get("link")
        if opened is None:
            return False
        process = str(delivery["p"])
        lost = self._history.lost.get((process, opened)) or self._kills.get(process, [])
        return any(
            fault["t"] <= before and opened <= fault.get("until", fault["t"]) and any(fault["t"] <= t for t in lost)
            for fault in self._breaks(process)
        )

    def _breaks(self, process: str) -> Iterator[Line]:
        """Return what can end a connection of the process: a server's fault, or standing still without heartbeats."""
        yield from self._common
        yield from self._pauses(process)

    # ------------------------------------------------------------------ a suspended process
    def _stood_still(self, second: Line, *, while_at: float) -> bool:
        """Return whether the process of a delivery was suspended when the other began, and ran it on waking up."""
        pauses: Iterable[Line] = self._stops.get(str(second["p"]), ())
        if self._slow_s is not None:
            pauses = self._pauses(str(second["p"]))
        return any(
            line["t"] <= while_at <= line["until"] + SLACK_S and line["t"] <= second["t"] <= line["until"] + SLACK_S
            for line in pauses
            if "until" in line
        )

    def _pauses(self, process: str) -> Iterator[Line]:
        yield from (line for line in self._stops.get(process, ()) if not line["kind"].startswith("kill"))
        yield from self._history.stalls.get(process, ())
