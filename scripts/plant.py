"""Plant bugs, one at a time, and see that the tests go red: a proof that cannot fail proves nothing.

    python scripts/plant.py                  plant all; append the results to ledger/planted.jsonl
    python scripts/plant.py --only lease     those whose name contains the word
    python scripts/plant.py --missing        those that the ledger does not know yet
    python scripts/plant.py --check          only see that each patch applies to exactly one place

A bug is a replacement of text in one file of ``src``, in scripts/planted_bugs/*.toml, with the test that must fail.
It is planted in a copy of the repository, never here. A bug that stays green is a failure, and so is one whose text is
not found any more. Before its first bug each test is run without one, and must be green.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUGS = ROOT / "scripts" / "planted_bugs"
LEDGER = ROOT / "ledger" / "planted.jsonl"
COPIED = ("src", "tests", "scripts", "docs", "examples", "pyproject.toml", "README.md", "CHANGELOG.md", "Makefile")
SIMULATION = "simulation"
SEEDS = 10_000
TESTS_FAILED = 1
"""Exit code of pytest when tests ran and some failed. Any other one is no evidence."""


class Verdict(Enum):
    """What became of a planted bug."""

    CAUGHT = "caught"
    GREEN = "stays green"
    NO_EVIDENCE = "the test did not run"
    DOES_NOT_APPLY = "does not apply"


@dataclass(frozen=True, slots=True)
class Bug:
    """One planted bug.

    Attributes:
        by: ``simulation``, or the words for pytest that select what must fail.
    """

    name: str
    package: str
    file: str
    find: str
    replace: str
    by: str

    def apply(self, root: Path) -> None:
        """Plant it in a copy of the repository."""
        path = root / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.find, self.replace), encoding="utf-8")

    def places(self, root: Path) -> int:
        """Return how often its text is found."""
        path = root / self.file
        return path.read_text(encoding="utf-8").count(self.find) if path.is_file() else 0


def read_bugs(folder: Path = BUGS) -> list[Bug]:
    """Return all bugs."""
    found: list[Bug] = []
    for path in sorted(folder.glob("*.toml")):
        for one in tomllib.loads(path.read_text(encoding="utf-8"))["bug"]:
            package = one["file"].removeprefix("src/conquiet/").split("/")[0]
            found.append(Bug(package=package, **one))
    return found


def unfit(bugs: list[Bug], root: Path = ROOT) -> list[str]:
    """Return what is wrong with the list: texts that are not found once, names that come twice."""
    wrong = [f"{bug.name}: found {bug.places(root)} times" for bug in bugs if bug.places(root) != 1]
    wrong += [f"{name}: this name comes twice" for name, n in Counter(bug.name for bug in bugs).items() if n > 1]
    return wrong


def command_for(by: str, root: Path) -> list[str]:
    """Return the command that must fail."""
    if by == SIMULATION:
        return [sys.executable, str(root / "scripts" / "simulate.py"), "1", "--seeds", str(SEEDS), "--stop"]
    return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", *shlex.split(by)]


def run(by: str, root: Path, limit_s: float) -> tuple[int, str]:
    """Run a test in the copy. Returns its exit code (-1: the time was up) and its last line that tells why."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("CONQUIET_LEDGER", None)
    try:
        done = subprocess.run(
            command_for(by, root),
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"not ended after {limit_s:.0f} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR", "seed "))]
    return done.returncode, (lines[0] if lines else (done.stdout + done.stderr).strip()[-200:])[:200]


def plant(bug: Bug, root: Path, limit_s: float) -> tuple[Verdict, str, float]:
    """Plant a bug, run its test, take the bug out again."""
    if bug.places(root) != 1:
        return Verdict.DOES_NOT_APPLY, f"its text is found {bug.places(root)} times", 0.0
    path = root / bug.file
    before, began = path.read_text(encoding="utf-8"), time.monotonic()
    bug.apply(root)
    try:
        code, text = run(bug.by, root, limit_s)
    finally:
        path.write_text(before, encoding="utf-8")
    took_s = time.monotonic() - began
    if code == TESTS_FAILED and text.startswith(("FAILED", "seed ", "ERROR")):
        return Verdict.CAUGHT, text, took_s
    return (Verdict.GREEN if code == 0 else Verdict.NO_EVIDENCE), text, took_s


def copy_to(folder: Path) -> Path:
    """Copy the repository without its history."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, folder / name)
    return folder


def main(arguments: list[str] | None = None) -> int:
    """Plant; return 1 if a bug was not caught."""
    parser = argparse.ArgumentParser(description="Plant bugs and see the tests go red.")
    parser.add_argument("--only", default="", help="part of the name of the bugs to plant")
    parser.add_argument("--missing", action="store_true", help="only bugs that the ledger does not know yet")
    parser.add_argument("--check", action="store_true", help="only see that the patches apply")
    parser.add_argument("--limit-s", type=float, default=300.0, help="time for each")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a bug first")
    parser.add_argument("--ledger", type=Path, default=LEDGER)
    options = parser.parse_args(arguments)
    bugs = [bug for bug in read_bugs() if options.only in bug.name or options.only == bug.package]
    if options.missing:
        known = {json.loads(line)["name"] for line in options.ledger.read_text(encoding="utf-8").splitlines()}
        bugs = [bug for bug in bugs if bug.name not in known]
    if wrong := unfit(bugs):
        print("\n".join(wrong))
        return 1
    if options.check:
        print(f"{len(bugs)} planted bugs apply")
        return 0
    failed, green = 0, set[str]()
    with tempfile.TemporaryDirectory(prefix="conquiet-planted-") as scratch:
        root = copy_to(Path(scratch))
        for bug in bugs:
            if bug.by not in green and bug.by != SIMULATION and not options.no_baseline:
                code, text = run(bug.by, root, options.limit_s)
                if code != 0:
                    print(f"{bug.by} is not green without a bug: {text}", flush=True)
                    failed += 1
                    continue
                green.add(bug.by)
            verdict, text, took_s = plant(bug, root, options.limit_s)
            failed += verdict is not Verdict.CAUGHT
            print(f"{verdict.value}: {bug.package}: {bug.name} ({took_s:.0f} s) {text}", flush=True)
            line = {
                "name": bug.name, "package": bug.package, "verdict": verdict.value, "by": bug.by, "seen": text,
                "seconds": round(took_s, 1), "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            }  # fmt: skip
            options.ledger.parent.mkdir(parents=True, exist_ok=True)
            with options.ledger.open("a", encoding="utf-8") as book:
                book.write(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
