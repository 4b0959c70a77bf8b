"""Print which rules of docs/spec-rules.tsv are proved by tests that passed, and fail on gaps.

The report comes from ``pytest --spec-report=FILE`` (see tests/conftest.py). A package listed in
docs/conformance.toml is done: each of its rules must be proved.

    python scripts/conformance.py --report FILE            print, write docs/conformance.md
    python scripts/conformance.py --report FILE --check    print, compare docs/conformance.md
    python scripts/conformance.py --markers                write docs/conformance.md from the markers of all tests

The last form needs no test run, for a page after tests were renamed. ``make test`` still compares the page with the
tests that passed.
"""

import argparse
import ast
import csv
import fnmatch
import json
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import generated

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the rules."""

    id: str
    seed: str
    text: str


def read_rules(path: Path) -> list[Rule]:
    """Read the tab-separated rules."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Rule(row["id"], row["seed"], row["rule"])
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]


def marked_tests() -> dict[str, list[str]]:
    """Return the tests that claim each rule, by the ``spec`` markers in their source."""
    claims: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.spec(" not in text:
            continue
        for test in ast.walk(ast.parse(text)):
            if not isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for marker in test.decorator_list:
                if isinstance(marker, ast.Call) and ast.unparse(marker.func) == "pytest.mark.spec":
                    for rule in marker.args:
                        claims[ast.literal_eval(rule)].append(f"{path.relative_to(ROOT)}::{test.name}")
    return {rule: sorted(set(tests)) for rule, tests in claims.items()}


def required_rules(packages: dict[str, dict[str, list[str]]], rules: list[Rule]) -> dict[str, str]:
    """Map each rule that a finished package must prove to that package; a pattern that matches no rule is an error."""
    required: dict[str, str] = {}
    for package, settings in packages.items():
        for pattern in settings["rules"]:
            fitting = [rule.id for rule in rules if fnmatch.fnmatchcase(rule.id, pattern)]
            if not fitting:
                sys.exit(f"docs/conformance.toml: {pattern} of package {package} matches no rule")
            required |= dict.fromkeys(fitting, package)
    return required


def render(rules: list[Rule], proofs: dict[str, list[str]], required: dict[str, str]) -> str:
    """Return the Markdown page: totals per seed, then each rule with its tests."""
    lines = [
        "# Conformance",
        "",
        "Written by `make conformance` from the tests that passed. Do not edit.",
        "",
        "| seed | proved | rules |",
        "|---|---|---|",
    ]
    by_seed = [(seed, list(group)) for seed, group in groupby(rules, key=lambda rule: rule.seed)]
    for seed, group in by_seed:
        lines.append(f"| {seed} | {sum(rule.id in proofs for rule in group)} | {len(group)} |")
    lines.append(f"| **all** | **{sum(rule.id in proofs for rule in rules)}** | **{len(rules)}** |")
    for seed, group in by_seed:
        lines += ["", f"## Seed {seed}", "", "| rule | what it says | package | proved by |", "|---|---|---|---|"]
        for rule in group:
            tests = "<br>".join(f"`{test}`" for test in proofs.get(rule.id, [])) or "open"
            lines.append(
                f"| {rule.id} | {rule.text.replace('|', chr(92) + '|')} | {required.get(rule.id, '')} | {tests} |"
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the command; the exit code is 1 when a finished package has a gap."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--report", type=Path)
    source.add_argument("--markers", action="store_true", help="take the markers of all tests for proofs")
    parser.add_argument("--check", action="store_true", help="compare docs/conformance.md instead of writing it")
    args = parser.parse_args()

    rules = read_rules(DOCS / "spec-rules.tsv")
    proofs: dict[str, list[str]] = (
        marked_tests() if args.markers else json.loads(args.report.read_text(encoding="utf-8"))
    )
    required = required_rules(tomllib.loads((DOCS / "conformance.toml").read_text(encoding="utf-8"))["packages"], rules)
    known = {rule.id for rule in rules}
    failures = [f"no such rule: {id_} (claimed by {tests[0]})" for id_, tests in proofs.items() if id_ not in known]
    failures += [
        f"not proved: {id_} (package {package} is done)" for id_, package in required.items() if id_ not in proofs
    ]

    verb = "claimed" if args.markers else "proved"
    for seed, group in groupby(rules, key=lambda rule: rule.seed):
        members = list(group)
        still_open = [rule.id for rule in members if rule.id not in proofs]
        print(f"seed {seed}: {len(members) - len(still_open)} / {len(members)} rules {verb}")
        if still_open and not args.check:
            print(f"  open: {' '.join(still_open)}")
    print(f"all: {len(known & proofs.keys())} / {len(rules)} rules {verb}")

    for failure in failures:
        print(failure, file=sys.stderr)
    stale = generated.write({DOCS / "conformance.md": render(rules, proofs, required)}, check=args.check)
    return 1 if failures or stale else 0


if __name__ == "__main__":
    sys.exit(main())
