"""The pure parts of the demo: orders, ledger, views, and what the command makes of a wrong sum."""

import io
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conquiet.cli import main
from conquiet.cli.demo.board import EVERYBODY, NOBODY, Board, Call, Row, State
from conquiet.cli.demo.ledger import Ledger
from conquiet.cli.demo.plan import OPENING_CENTS, DemoPlan
from conquiet.cli.demo.view import LiveView, PlainView, Snapshot, WorkerLine
from conquiet.errors import ConfigurationError
from conquiet.testing.errors import ServerUnavailableError


def a_ledger(**changed: Any) -> Ledger:
    facts: dict[str, Any] = {
        "enqueued": 10, "processed": 10, "repeated": 0, "deliveries": 11, "duplicates": 1, "recovered": 3, "kills": 1,
        "restarts": 0, "unsettled": 0, "money_expected": {1: 5, 2: 7}, "money_found": {1: 5, 2: 7}, "seconds": 2.0,
    }  # fmt: skip
    return Ledger(**(facts | changed))


def test_the_same_seed_makes_the_same_orders_and_money_is_conserved() -> None:
    plan = DemoPlan(orders=500)

    balances = plan.balances()

    assert list(plan.payloads()) == list(DemoPlan(orders=500).payloads())
    assert sum(balances.values()) == OPENING_CENTS * len(balances)
    assert set(balances.values()) != {OPENING_CENTS}
    with pytest.raises(ConfigurationError):
        DemoPlan(orders=0)


@pytest.mark.parametrize(
    "changed",
    [
        {"processed": 9},
        {"repeated": 1},
        {"unsettled": 1},
        {"money_found": {1: 6, 2: 6}},
        {"money_found": {1: 5}},
        {"processed": 11},
    ],
)
def test_a_ledger_balances_only_if_everything_is_in_place(changed: dict[str, Any]) -> None:
    """Money that only moved between the wrong accounts sums up all the same: each account is looked at."""
    assert a_ledger().balanced
    assert not a_ledger(**changed).balanced


def test_a_board_survives_its_writer(tmp_path: Path) -> None:
    board = Board.create(tmp_path / "board", 2)
    other = Board(tmp_path / "board")
    other.write(1, Row(pid=7, state=State.WORKING, handled=5, in_hand=2))
    other.close()

    assert board.read(1) == Row(7, State.WORKING, 5, 0, 0, 2)
    assert board.read(0) == Row()
    board.close()


def test_nobody_reads_before_the_conductor_calls_and_a_call_may_be_for_one_alone(tmp_path: Path) -> None:
    board = Board.create(tmp_path / "board", 2)
    other = Board(tmp_path / "board")

    seen = [other.call]
    for call in (Call(EVERYBODY), Call(1, freeze=1)):
        board.call = call
        seen.append(other.call)

    assert [[call.admits(row) for row in (0, 1)] for call in seen] == [[False, False], [True, True], [False, True]]
    assert [call.freeze for call in seen] == [NOBODY, NOBODY, 1]
    assert board.read(0) == board.read(1) == Row()
    board.close()
    other.close()


def a_snapshot(elapsed_s: float = 1.0, handled: int = 5) -> Snapshot:
    worker = WorkerLine("worker-1", 77, State.WORKING, alive=True, handled=handled, recovered=1, in_hand=2)
    dead = WorkerLine("worker-2", 78, State.FROZEN, alive=False, handled=3, recovered=0, in_hand=4)
    return Snapshot(10, elapsed_s, handled, pending=6, waiting=1, recovered=1, workers=(worker, dead))


@pytest.mark.parametrize("kind", [PlainView, LiveView])
@pytest.mark.parametrize("balanced", [True, False])
def test_both_views_tell_the_same_story(kind: Any, monkeypatch: pytest.MonkeyPatch, *, balanced: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")  # on a dumb terminal rich draws no live picture
    screen = io.StringIO()
    console = Console(file=screen, width=120, force_terminal=kind is LiveView, no_color=True)
    ledger = a_ledger() if balanced else a_ledger(processed=9)

    with kind(console) as view:
        view.say("worker-2 killed with -9")
        view.show(a_snapshot(1.0, 5))
        view.show(a_snapshot(2.5, 8))
        view.close_with(ledger)

    told = screen.getvalue()
    for word in ("worker-2 killed with -9", "8 of 10", "in hand 2", "pending 6", "duplicates stepped aside"):
        assert word in told
    assert ("Nothing lost, nothing done twice" in told) == balanced
    assert ("This is a bug" in told) != balanced


# ---------------------------------------------------------------- the command
class Unbalanced:
    def __init__(self, *_: object) -> None: ...

    def run(self) -> Ledger:
        return a_ledger(processed=9)


def exit_code_of(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    monkeypatch.setattr(sys, "argv", ["conquiet", "demo", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_sum_that_is_wrong_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def no_stage(**_: object) -> Any:
        yield None

    monkeypatch.setattr("conquiet.cli.demo.conductor.Conductor", Unbalanced)
    monkeypatch.setattr("conquiet.cli.demo.stage.open_stage", no_stage)

    assert exit_code_of(monkeypatch, "--json") == 1
    assert json.loads(capsys.readouterr().out)["lost"] == 1


def test_without_any_server_program_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(*_: object, **__: object) -> Any:
        raise ServerUnavailableError("no redis-server was found")

    monkeypatch.setattr("conquiet.cli.demo.stage.RedisServer", nothing)

    assert exit_code_of(monkeypatch) == 2
    said = capsys.readouterr().err
    assert "no Redis to play on" in said
    assert "pip install 'conquiet[embedded]'" in said
