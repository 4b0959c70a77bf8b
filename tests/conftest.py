"""Shared by all tests: the report of proved rules.

``--spec-report=FILE`` writes ``{rule id: [tests]}`` for the ``spec`` markers of tests that passed. A
test that runs with several parameters proves its rules only if all of them passed.
"""

import json
from collections import defaultdict
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--spec-report", type=Path, default=None, help="write the rules proved by passing tests to FILE")


def pytest_configure(config: pytest.Config) -> None:
    path: Path | None = config.getoption("--spec-report")
    if path is not None:
        config.pluginmanager.register(SpecReport(path))


class SpecReport:
    """Collects which rules were proved and writes them at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._claims: dict[str, set[str]] = defaultdict(set)
        self._failed: set[str] = set()
        self._passed: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for marker in item.iter_markers("spec"):
                for rule in marker.args:
                    self._claims[rule].add(_without_parameters(item.nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = _without_parameters(report.nodeid)
        if not report.passed:
            self._failed.add(test)
        elif report.when == "call":
            self._passed.add(test)

    def pytest_sessionfinish(self) -> None:
        proved = self._passed - self._failed
        report = {rule: sorted(tests & proved) for rule, tests in sorted(self._claims.items()) if tests & proved}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _without_parameters(nodeid: str) -> str:
    return nodeid.split("[", 1)[0]
