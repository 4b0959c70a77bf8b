"""The output of the demo."""

import io
from typing import Any

import pytest
from rich.console import Console

from conquiet.cli.demo.shared_state import DemoWorkerRow, DemoWorkerState
from conquiet.cli.demo.summary import Summary
from conquiet.cli.demo.view import DemoSnapshot, DemoView, LiveView, WorkerLine


def a_summary(**changed: Any) -> Summary:
    facts: dict[str, Any] = {
        "enqueued": 10, "processed": 10, "repeated": 0, "deliveries": 11, "duplicates": 1, "recovered": 3, "kills": 1,
        "restarts": 0, "unsettled": 0, "money_expected": {1: 5, 2: 7}, "money_found": {1: 5, 2: 7}, "seconds": 2.0,
    }  # fmt: skip
    return Summary(**(facts | changed))


def a_snapshot(elapsed_s: float = 1.0, handled: int = 5) -> DemoSnapshot:
    worker = WorkerLine(
        "worker-1", alive=True, row=DemoWorkerRow(77, DemoWorkerState.WORKING, handled, recovered=1, in_flight=2)
    )
    dead = WorkerLine("worker-2", alive=False, row=DemoWorkerRow(78, DemoWorkerState.FROZEN, handled=3, in_flight=4))
    return DemoSnapshot(10, elapsed_s, handled, pending=6, waiting=1, recovered=1, workers=(worker, dead))


@pytest.mark.parametrize("kind", [DemoView, LiveView])
@pytest.mark.parametrize("balanced", [True, False])
def test_both_views_show_the_same_facts(
    kind: type[DemoView | LiveView], monkeypatch: pytest.MonkeyPatch, *, balanced: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")  # on a dumb terminal rich draws no live display
    screen = io.StringIO()
    console = Console(file=screen, width=120, force_terminal=kind is LiveView, no_color=True)
    summary = a_summary() if balanced else a_summary(processed=9)

    with kind(console) as view:
        view.log("worker-2 killed with -9")
        view.show(a_snapshot(1.0, 5))
        view.show(a_snapshot(2.5, 8))
        view.show_summary(summary)

    reported = screen.getvalue()
    for word in ("worker-2 killed with -9", "8 of 10", "in flight 2", "pending 6", "duplicates skipped"):
        assert word in reported
    assert ("Nothing lost, nothing done twice" in reported) == balanced
    assert ("This is a bug" in reported) != balanced
