"""Render docs/reliability.md and a sentence of the README from the ledger, check them, or judge the histories again.

    python scripts/ledger.py             write them
    python scripts/ledger.py --check     exit code 1 if they are not what the ledger says
    python scripts/ledger.py --judge     judge ledger/histories again, and compare with what the ledger says of them

The ledger is a folder of JSON lines: one file for each storm, one line for each run, appended by tests/invariants and
never changed. ``planted.jsonl`` is from scripts/plant.py, ``simulation.jsonl`` from scripts/simulate.py.
``notes.toml`` is written by hand: the bugs that the storms have found, and what is not covered.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import re
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import check_history
import generated
import history_records
import plant

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "ledger"
PAGE = ROOT / "docs" / "reliability.md"
README = ROOT / "README.md"
_RESULT = re.compile(r"\*\*[\d,]+ faults, .*?\*\*", re.DOTALL)
"""The sentence of the README."""
OTHERS = {"planted", "simulation"}
MAIN = ("lost", "effect twice", "stuck")
"""Anomalies with their own column."""
Line = dict[str, Any]


@dataclass(slots=True)
class Row:
    """All runs of one storm."""

    runs: list[Line] = field(default_factory=list)

    @property
    def last(self) -> Line:
        """Return the newest run."""
        return self.runs[-1]

    def total(self, name: str) -> int:
        """Return the sum of a number over all runs."""
        return sum(int(run.get(name, 0)) for run in self.runs)

    def anomalies(self, *names: str) -> int:
        """Return how many anomalies of these kinds were found, over all runs."""
        return sum(int(run["anomalies"].get(name, 0)) for run in self.runs for name in names)

    @property
    def other_anomalies(self) -> int:
        """Return the anomalies without a separate column."""
        return sum(int(n) for run in self.runs for name, n in run["anomalies"].items() if name not in MAIN)


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a file of the ledger; none if there is no such file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def read_rows(ledger: Path = LEDGER) -> list[Row]:
    """Return all storms, by engine, database and topology."""
    found: dict[str, Row] = defaultdict(Row)
    for path in sorted(ledger.glob("*.jsonl")):
        if path.stem not in OTHERS:
            for line in read_lines(path):
                found[line["storm"]].runs.append(line)
    return sorted(found.values(), key=lambda row: (*row.last["row"].values(), row.last["storm"]))


def newest(lines: list[Line], key: str) -> dict[str, Line]:
    """Return the last line of each name."""
    return {line[key]: line for line in lines}


# ------------------------------------------------------------------ the page
def render(ledger: Path = LEDGER) -> str:
    """Return the page."""
    rows, notes = read_rows(ledger), tomllib.loads((ledger / "notes.toml").read_text(encoding="utf-8"))
    planted = newest(read_lines(ledger / "planted.jsonl"), "name")
    parts = [_head(rows, planted), _table(rows), _points(rows)]
    parts += [_simulation(read_lines(ledger / "simulation.jsonl"), planted)]
    parts += [_remarks(notes), _planted(planted), _bugs(notes), _not_covered(notes), _repeat(rows), _TAIL]
    return "\n\n".join(parts).rstrip() + "\n"


def render_readme(page: str) -> str:
    """Return the README with the result of the page."""
    return _RESULT.sub(_RESULT.search(page)[0], README.read_text(encoding="utf-8"), count=1)  # type: ignore[index]


def _head(rows: list[Row], planted: dict[str, Line]) -> str:
    messages, faults = (sum(row.total(name) for row in rows) for name in ("messages", "faults"))
    lost, twice, stuck = (sum(row.anomalies(name) for row in rows) for name in MAIN)
    caught = sum(line["verdict"] == "caught" for line in planted.values())
    names = {bug.name for bug in plant.read_bugs()} | planted.keys()
    not_run = len(names - planted.keys())
    rest = f" ({not_run} have not been run yet)" if not_run else ""
    return f"""# Reliability: the fault ledger

Storms kill, freeze and disconnect real processes and real servers while they process messages, and record a history. A
checker that shares no code with conquiet reads these histories and reports every anomaly. This page is generated from
the results, and a failed run stays in the table. Not included: trial runs from before the ledger began, and storms that
exceeded the time limit of their test before they could be judged.

**{faults:,} faults, {messages:,} messages and updates: {lost} lost, {twice} done twice, {stuck} stuck.
Planted bugs caught: {caught} of {len(names)}{rest}.**

- *Faults*: processes killed with `kill -9`, stopped or frozen; servers killed and restarted; connections closed;
  replies lost.
- *Lost*: a message without its effect. *Twice*: an effect that happened twice where once is promised. *Stuck*:
  something that was not finished in time after the last fault.
- *Delivered again*: second deliveries. Each was explained by a fault in the history; a delivery without a fault counts
  as *other*.
- *Replication*: messages sent without waiting for a replica (`replicas=1`) and lost with a killed primary. Redis
  replicates asynchronously; these are not in *lost*."""


_HEADINGS = (
    *("no.", "storm", "engine", "database", "servers", "messages", "faults"),
    *("lost", "twice", "stuck", "other", "replication", "again"),
)


def _table(rows: list[Row]) -> str:
    lines = [
        f"| {' | '.join(_HEADINGS)} |",
        "|--:|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for number, row in enumerate(rows, 1):
        place = row.last["row"]
        figures = [
            f"{row.total('messages'):,}",
            f"{row.total('faults'):,}",
            *(str(row.anomalies(name)) for name in MAIN),
        ]
        figures += [str(row.other_anomalies), *(f"{row.total(name):,}" for name in ("lost_by_replication", "again"))]
        cells = [str(number), row.last["storm"], place["engine"], place["database"], place["topology"], *figures]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _points(rows: list[Row]) -> str:
    """Return the kill points of the last run of each storm that has some."""
    lines = [
        "## Kill points",
        "",
        "A kill point is a named place in the code of a worker, such as between the commit and the acknowledgement.",
        "A worker is armed with one and killed when it comes there. A storm names how often each has to be reached,",
        "and fails if one was not. The last run of each storm, as *reached of armed* (older runs: reached alone):",
        "",
        "| no. | storm | kill points |",
        "|--:|---|---|",
    ]
    for number, row in enumerate(rows, 1):
        reached, armed = row.last.get("points", {}), row.last.get("armed", {})
        if reached:
            cells = [
                f"{point} {times} of {armed[point]}" if point in armed else f"{point} {times}"
                for point, times in reached.items()
            ]
            lines.append(f"| {number} | {row.last['storm']} | {', '.join(cells)} |")
    return "\n".join(lines)


def _simulation(lines: list[Line], planted: dict[str, Line]) -> str:
    if not lines:
        return "## Simulation\n\nNo run is in the ledger yet."
    total = {name: sum(int(line[name]) for line in lines) for name in ("seeds", "messages", "faults", "again", "bad")}
    last = lines[-1]
    found = sum(line["by"] == "simulation" and line["verdict"] == "caught" for line in planted.values())
    return f"""## Simulation

The runtime engine also lives in a simulated world: virtual time, a model of Redis below its connections, kills at any
`await`, lost requests and replies, delays. A seed decides everything, and the same seed gives the same trace.

{total["seeds"]:,} seeds, {total["messages"]:,} messages, {total["faults"]:,} faults, {total["again"]:,} delivered
again: **{total["bad"]} seeds with an anomaly**. The last run was at commit {last["commit"]} with
{last["lives_an_hour"]:,} message lives an hour. It found {found} of the planted bugs below, each within 10,000 seeds.
To repeat a seed: `python scripts/simulate.py SEED`."""


def _planted(planted: dict[str, Line]) -> str:
    lines = [
        "## Planted bugs",
        "",
        "A storm that cannot fail proves nothing. Each of these bugs was planted in a copy of the code, and the named",
        "test or the simulation had to find it: `python scripts/plant.py`. A bug that stays green fails the run.",
        "",
        "| package | planted bug | found by | seconds | result |",
        "|---|---|---|--:|---|",
    ]
    for line in sorted(planted.values(), key=lambda line: (line["package"], line["name"])):
        seen = (
            line["seen"].split("::")[-1].split(" - ")[0] if line["by"] != "simulation" else line["seen"].split(":")[0]
        )
        by = f"simulation, {seen}" if line["by"] == "simulation" else f"`{seen.split('[')[0]}`"
        lines.append(f"| {line['package']} | {line['name']} | {by} | {line['seconds']:.0f} | {line['verdict']} |")
    return "\n".join(lines)


def _bugs(notes: Line) -> str:
    lines = [
        "## Bugs that the storms have found",
        "",
        "| found by | bug | fixed by | kept fixed by |",
        "|---|---|---|---|",
    ]
    lines += [f"| {bug['by']} | {bug['what']} | {bug['fix']} | {bug['test']} |" for bug in notes["bug"]]
    return "\n".join(lines)


def _remarks(notes: Line) -> str:
    return "\n".join(["## Remarks on single runs", "", *(f"- {text}" for text in notes["remarks"])])


def _not_covered(notes: Line) -> str:
    return "\n".join(["## What is not covered", "", *(f"- {text}" for text in notes["not_covered"])])


def _repeat(rows: list[Row]) -> str:
    lines = [
        "## How to repeat a row",
        "",
        "`make torture` runs all of them at full size and renders this page; `make test` runs them small. One row at",
        "full size: `CONQUIET_TORTURE=1 .venv/bin/pytest tests/invariants/TEST`. `make ledger-check` judges the kept",
        "histories again.",
        "",
        "| no. | storm | test | runs | seed | kept history | servers and their durability |",
        "|--:|---|---|--:|--:|---|---|",
    ]
    for number, row in enumerate(rows, 1):
        last = row.last
        kept = f"{last['lines']:,} lines" if last["history"] else "digest only"
        servers = "; ".join(
            f"{one['name']} {one['version']} ({_settings(one['durability'])})" for one in last["servers"]
        )
        test = last["test"].split("[")[0]
        cells = [str(number), last["storm"], f"`{test}`", str(len(row.runs)), str(last["seed"]), kept, servers]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _settings(durability: Line) -> str:
    return ", ".join(f"{name} {value or 'off'}" for name, value in durability.items())


_TAIL = """## How it works

- A storm has two phases: faults, then a recovery with a time limit in which everything must drain.
- Kill points have names. Each must be armed and reached the number of times that the storm requires, or the run fails.
- The [format of a history](history-format.md) is documented, and the checker uses Python's standard library alone:
  `python scripts/check_history.py ledger/histories/*.jsonl.xz`.
- Kept histories are in `ledger/histories`. Large ones are not kept in the repository: the ledger has their SHA-256,
  their seed and their judgement.
- Messages are counted as enqueued; a row of a database storm counts updates, a row of the scheduler counts ticks."""


# ------------------------------------------------------------------ judging again
def judge_again(ledger: Path = LEDGER) -> list[str]:
    """Judge each kept history. Return what differs from the ledger."""
    wrong: list[str] = []
    known = {row.last["history"]: row.last for row in read_rows(ledger) if row.last["history"]}
    for path in sorted((ledger / "histories").glob("*.jsonl.xz")):
        line = known.pop(path.name, None)
        if line is None:
            wrong.append(f"{path.name}: not in the ledger")
            continue
        text = lzma.decompress(path.read_bytes())
        if hashlib.sha256(text).hexdigest() != line["sha256"]:
            wrong.append(f"{path.name}: not the history that was judged")
            continue
        summary = check_history.judge(history_records.parse(text.decode().splitlines()))
        wrong += [
            f"{path.name}: {key} is {summary[key]}, the ledger says {line[key]}"
            for key in _COMPARED
            if summary[key] != line[key]
        ]
    return wrong + [f"{name}: named in the ledger, and not there" for name in known]


_COMPARED = ("messages", "faults", "deliveries", "again", "causes", "anomalies")


def main(arguments: list[str] | None = None) -> int:
    """Render, check or judge."""
    parser = argparse.ArgumentParser(description="The published fault ledger.")
    parser.add_argument("--check", action="store_true", help="only compare the page with the ledger")
    parser.add_argument("--judge", action="store_true", help="judge the kept histories again")
    options = parser.parse_args(arguments)
    if options.judge:
        wrong = judge_again()
        print("\n".join(wrong) or "every kept history is judged as the ledger says")
        return 1 if wrong else 0
    page = render()
    return generated.write({PAGE: page, README: render_readme(page)}, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
