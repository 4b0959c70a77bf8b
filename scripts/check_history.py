"""Judge the history of a storm: read what happened and what was left, and name every anomaly.

    python scripts/check_history.py ledger/histories/*.jsonl.xz     one line for each; exit code 1 on an anomaly
    python scripts/check_history.py --json FILE                     the whole judgement

It needs Python's standard library and nothing of conquiet: a bug of the library cannot hide itself here. The format is
described in docs/history-format.md. Each function below called ``find_…`` looks for one kind of anomaly.
"""

from __future__ import annotations

import argparse
import bisect
import json
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from history_causes import SLACK_S, Causes, kills
from history_records import History, ids_of, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from history_records import Line

SHOWN = 5
"""Number of printed examples of each anomaly."""


class Anomaly(Enum):
    """Everything that can be wrong with a history."""

    LOST = "lost"
    TWICE = "effect twice"
    ORDER = "out of order"
    TICK_MISSED = "tick missed"
    TICK_DOUBLED = "tick doubled"
    STUCK = "stuck"
    LOCK = "lock violated"
    CHARGED = "attempt charged without cause"
    LEAKED = "leaked"
    UNEXPLAINED = "duplicate delivery without a fault"
    EARLY_ACK = "acknowledged before commit"
    CANCELLED_RAN = "effect after a confirmed cancel"
    NOT_REACHED = "kill point not reached"
    INVALID = "invalid history"


@dataclass(frozen=True, slots=True)
class Finding:
    """One anomaly, and where."""

    anomaly: Anomaly
    text: str


# ------------------------------------------------------------------ the anomalies
def find_invalid(history: History) -> Iterator[Finding]:
    """Report what makes the history unfit to be judged."""
    for problem in history.problems:
        yield Finding(Anomaly.INVALID, problem)
    if not history.enqueued and not history.ticks and not history.added:
        yield Finding(Anomaly.INVALID, "nothing was enqueued, ticked or added: this history proves nothing")
    if history.recovery_began_s is None:
        yield Finding(Anomaly.INVALID, "it does not say when its recovery began")
    if history.judges_commits and not (history.commits and history.acks):
        yield Finding(Anomaly.INVALID, "its header promises commits, and it has no commit or no acknowledgement")


def _stages(history: History) -> list[str]:
    """Return the places at which each message has to have its effect."""
    return list(history.promise.get("stages", [""]))


def find_lost_and_twice(history: History) -> Iterator[Finding]:
    """Each message has its effect, or is a dead letter where that is expected; with ``once`` not a second time."""
    mode = history.promise.get("effects", "none")
    if mode == "none":
        return
    dead = Counter(history.dead)
    done = {stage: Counter(history.effects.get(stage, ())) for stage in _stages(history)}
    for message, line in history.enqueued.items():
        expected = line.get("expect", "effect")
        stages = [line["of"]] if "of" in line else list(done)
        times = [done[stage][message] for stage in stages]
        if message in history.cancelled:
            if any(times):
                yield Finding(Anomaly.CANCELLED_RAN, f"message {message} ran after its cancel was confirmed")
            continue
        if expected == "dead":
            yield from _judge_doomed(message, dead[message], sum(times))
            continue
        if min(times) == 0 and not _may_be_missing(history, line, dead[message]):
            yield Finding(Anomaly.LOST, f"message {message} " + ("is dead-lettered" if dead[message] else "is nowhere"))
        is_once = mode == "once" and not set(stages) <= set(history.promise.get("repeatable", ()))
        if is_once and (max(times) > 1 or (dead[message] and any(times))):
            yield Finding(Anomaly.TWICE, f"message {message}: {max(times)} effects, {dead[message]} dead letters")
    for stage, count in done.items():
        for message in count.keys() - history.enqueued.keys():
            yield Finding(Anomaly.TWICE, f"effect {message} {stage} belongs to no message")


def _may_be_missing(history: History, line: Line, dead: int) -> bool:
    """Return whether a message may have no effect: it is a dead letter, or its sender got no reply."""
    expected = line.get("expect", "effect")
    return expected == "unsure" or (expected == "either" and dead > 0) or is_lost_by_replication(history, line)


def is_lost_by_replication(history: History, line: Line) -> bool:
    """Return whether a lost primary explains a missing message: sent just before or meanwhile, and not to a replica."""
    if line.get("replicated", True):
        return False
    losing = [fault for fault in history.faults if fault.get("loses_s") is not None]
    return any(fault["t"] - fault["loses_s"] <= line["t"] <= _loses_until(fault) for fault in losing)


def _loses_until(fault: Line) -> float:
    """Return until when a fault loses messages: to the end of a planned fail-over (0 s), which a primary survives."""
    end: float = fault["t"] + SLACK_S
    return end if fault["loses_s"] else fault.get("until", end)


def lost_by_replication(history: History) -> int:
    """Return how many messages are missing that were sent without a replica when a primary was lost."""
    seen = {message for messages in history.effects.values() for message in messages} | set(history.dead)
    return sum(
        message not in seen and line.get("expect") != "unsure" and is_lost_by_replication(history, line)
        for message, line in history.enqueued.items()
    )


def _judge_doomed(message: str, dead: int, effects: int) -> Iterator[Finding]:
    if dead == 0:
        yield Finding(Anomaly.LOST, f"message {message} should be a dead letter and is none")
    elif dead > 1 or effects:
        yield Finding(Anomaly.TWICE, f"message {message}: {dead} dead letters, {effects} effects")


def find_lost_updates(history: History) -> Iterator[Finding]:
    """Each counter has moved by what was reported to its writers. A report that a kill took away may count or not."""
    if history.counters is None:
        return
    opening = history.counters.get("opening", 0)
    sure: Counter[str] = Counter()
    unsure: dict[str, list[int]] = defaultdict(list)
    for line in history.added:
        if line["ok"] is None:
            unsure[str(line["row"])].append(line["by"])
        elif line["ok"]:
            sure[str(line["row"])] += line["by"]
    for row, value in history.counters["counters"].items():
        found, low, high = value - opening, sure[row], sure[row]
        low += sum(by for by in unsure[row] if by < 0)
        high += sum(by for by in unsure[row] if by > 0)
        if not low <= found <= high:
            anomaly = Anomaly.LOST if found < low else Anomaly.TWICE
            yield Finding(anomaly, f"row {row} moved by {found}, its writers were answered {low} to {high}")


def find_disorder(history: History) -> Iterator[Finding]:
    """Per key, first effects of a stage are in the promised order: of enqueuing, or of another stage."""
    keys = {message: key for key, message in history.order}
    for stage, model in history.promise.get("order", {}).items():
        wanted = [message for _, message in history.order] if model == "enqueue" else history.effects.get(model, [])
        rank: dict[str, int] = {}
        for message in wanted:
            rank.setdefault(message, len(rank))
        last: dict[str, int] = {}
        met: set[str] = set()
        for message in history.effects.get(stage, []):
            if message in met or message not in rank or message not in keys:
                continue
            met.add(message)
            key = keys[message]
            if rank[message] < last.get(key, -1):
                yield Finding(Anomaly.ORDER, f"key {key}: message {message} came too late at {stage or 'the effect'}")
            last[key] = max(last.get(key, -1), rank[message])


def find_wrong_ticks(history: History) -> Iterator[Finding]:
    """Each schedule has fired at each of its times from the first to the last, once."""
    for name, step in history.promise.get("ticks", {}).items():
        count = Counter(history.ticks.get(name, ()))
        if not count:
            yield Finding(Anomaly.TICK_MISSED, f"schedule {name} has never fired")
            continue
        for due in range(min(count), max(count) + 1, step):
            if due not in count:
                yield Finding(Anomaly.TICK_MISSED, f"schedule {name} has not fired at {due}")
        for due, times in count.items():
            if times > 1 or (due - min(count)) % step:
                yield Finding(Anomaly.TICK_DOUBLED, f"schedule {name} has fired {times} times at {due}")


def find_stuck(history: History) -> Iterator[Finding]:
    """Everything has drained within the time box that begins with the last fault."""
    for what, number in history.left.items():
        if number:
            yield Finding(Anomaly.STUCK, f"{number} {what} at the end")
    box_s = float(history.header.get("recovery_s", 60.0))
    last_s = max((line["t"] for line in history.faults), default=0.0)
    last_s = max(last_s, history.recovery_began_s or 0.0)
    if history.drained_s is None:
        yield Finding(Anomaly.STUCK, "it was never seen drained")
    elif history.drained_s - last_s > box_s:
        yield Finding(
            Anomaly.STUCK, f"drained {history.drained_s - last_s:.0f} s after the last fault, not {box_s:.0f}"
        )


def find_lock_violations(history: History) -> Iterator[Finding]:
    """No two processes are inside one lock at a time. A killed holder has left it."""
    killed = kills(history)
    holder: dict[str, tuple[str, float]] = {}
    for line in sorted(history.locks, key=lambda each: each["t"]):
        name, process = str(line["name"]), str(line["p"])
        if line["op"] == "unlock":
            if holder.get(name, ("", 0.0))[0] == process:
                del holder[name]
            continue
        other = holder.get(name)
        if other is not None and other[0] != process and not any(t <= line["t"] for t in killed.get(other[0], ())):
            yield Finding(Anomaly.LOCK, f"lock {name}: {process} entered while {other[0]} was inside")
        holder[name] = (process, line["t"])


def find_wrong_charges(history: History) -> Iterator[Finding]:
    """A delivery or attempt is counted only for a cause that may count: a failed run, or a process that was killed."""
    if not history.promise.get("attempts"):
        return
    charging = sorted(line["t"] for line in history.faults if line.get("charges", True))
    for stage, message, runs in history.deliveries:
        failed = [line["t"] for line in history.returned.get((stage, message), ()) if line["op"] == "retry"]
        before_n, before_s = 1, float("-inf")
        for run in sorted(runs, key=lambda line: line["t"]):
            step = run.get("n", 1) - before_n
            causes = sum(before_s <= t <= run["t"] for t in failed)
            causes += bisect.bisect_right(charging, run["t"]) - bisect.bisect_left(charging, before_s)
            if step > causes:
                yield Finding(Anomaly.CHARGED, f"message {message}: delivery {run['n']} with {causes} causes for it")
            before_n, before_s = max(before_n, run.get("n", 1)), run["t"] - SLACK_S


def find_early_acks(history: History) -> Iterator[Finding]:
    """No message is acknowledged before its transaction is committed.

    A dead letter and a cancelled message have nothing to commit.
    """
    without = set(history.dead) | history.cancelled
    without |= {message for message, line in history.enqueued.items() if line.get("expect") == "dead"}
    for line in history.acks:
        committed = history.commits[line.get("of", "")]
        for message in ids_of(line):
            if committed.get(message, float("inf")) > line["t"] and message not in without:
                when = "before its commit" if message in committed else "and was never committed"
                text = f"message {message} was acknowledged at {line['t']:.3f} s in process {line['p']} {when}"
                yield Finding(Anomaly.EARLY_ACK, text)


def find_leaks(history: History) -> Iterator[Finding]:
    """Report processes, connections, keys and consumer names that outlived the storm."""
    for what, found in history.leaked.items():
        if found:
            yield Finding(Anomaly.LEAKED, f"{what}: {found}")


def find_unreached_points(history: History) -> Iterator[Finding]:
    """Each kill point was armed and reached as often as the header requires."""
    for point, wanted in history.header.get("points", {}).items():
        if history.armed[point] < 1 or history.reached[point] < wanted:
            times = f"armed {history.armed[point]} times, reached {history.reached[point]}, wanted {wanted}"
            yield Finding(Anomaly.NOT_REACHED, f"point {point}: {times}")


# ------------------------------------------------------------------ why a message was delivered again
def explain(history: History) -> tuple[Counter[str], list[Finding]]:
    """Name the cause of each delivery after a message's first, and report those without one."""
    causes, found = Counter[str](), list[Finding]()
    finder = Causes(history)
    for stage, message, runs in history.deliveries.repeated():
        ordered = sorted(runs, key=lambda line: line["t"])
        returned = history.returned.get((stage, message), ())
        copies = history.enqueued.get(message, {}).get("copies", 1) - 1
        for number, second in enumerate(ordered[1:], 1):
            found_causes = (finder.of(first, second, returned) for first in reversed(ordered[:number]))
            cause = next(filter(None, found_causes), None)
            if cause is None and copies > 0:
                cause, copies = "sent more than once", copies - 1
            causes[cause or "none"] += 1
            if cause is None:
                before = ordered[number - 1]
                text = (
                    f"message {message} {stage} at {second['t']:.3f} s in process {second['p']}, "
                    f"after {before['t']:.3f} s in process {before['p']}"
                )
                found.append(Finding(Anomaly.UNEXPLAINED, text))
    return causes, found


CHECKS = (
    find_invalid,
    find_lost_and_twice,
    find_lost_updates,
    find_disorder,
    find_wrong_ticks,
    find_stuck,
    find_lock_violations,
    find_wrong_charges,
    find_early_acks,
    find_leaks,
    find_unreached_points,
)


# ------------------------------------------------------------------ the judgement
def judge(history: History) -> dict[str, Any]:
    """Return the summary of a history: totals, causes of duplicates, anomalies with examples."""
    causes, findings = explain(history)
    for check in CHECKS:
        findings.extend(check(history))
    by_anomaly: dict[str, list[str]] = defaultdict(list)
    for finding in findings:
        by_anomaly[finding.anomaly.value].append(finding.text)
    ticks = sum(map(len, history.ticks.values()))
    return {
        "storm": history.header.get("storm", "?"),
        "messages": len(history.enqueued) + ticks + len(history.added),
        "faults": len(history.faults),
        "fault_kinds": dict(sorted(Counter(str(line["kind"]) for line in history.faults).items())),
        "deliveries": history.deliveries.count,
        "commits": sum(map(len, history.commits.values())),
        "again": sum(causes.values()),
        "lost_by_replication": lost_by_replication(history),
        "causes": dict(sorted(causes.items())),
        "points": {point: history.reached[point] for point in sorted(history.header.get("points", {}))},
        "armed": {point: history.armed[point] for point in sorted(history.header.get("points", {}))},
        "lines": history.lines,
        "anomalies": {name: len(texts) for name, texts in sorted(by_anomaly.items())},
        "examples": {name: texts[:SHOWN] for name, texts in sorted(by_anomaly.items())},
    }


def main(arguments: list[str] | None = None) -> int:
    """Judge the files that are named; return 0 if none has an anomaly."""
    parser = argparse.ArgumentParser(description="Judge histories of storms: docs/history-format.md.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true", help="print the whole judgement")
    options = parser.parse_args(arguments)
    bad = 0
    for path in options.files:
        summary = judge(read(path))
        bad += bool(summary["anomalies"])
        if options.json:
            print(json.dumps(summary, indent=1))
            continue
        verdict = "; ".join(f"{name}: {count}" for name, count in summary["anomalies"].items()) or "clean"
        totals = ", ".join(f"{summary[name]} {name}" for name in ("messages", "faults", "again"))
        print(f"{path.name}: {totals}, {verdict}")
        for name, texts in summary["examples"].items():
            for text in texts:
                print(f"    {name}: {text}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
