"""Invariants start hundreds of short-lived processes and kill most of them."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")  # as wide as the widest fixture that starts one
def without_coverage_in_the_processes_that_are_killed() -> Iterator[None]:
    """A process killed with -9 saves no coverage, and starting to measure takes longer than many of them live."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
            patch.delenv(name, raising=False)
        yield
