"""Invariants start hundreds of short-lived processes and kill most of them."""

import pytest


@pytest.fixture(autouse=True)
def without_coverage_in_the_processes_that_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process killed with -9 saves no coverage, and starting to measure takes longer than many of them live."""
    for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
