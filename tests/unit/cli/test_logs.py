"""The format of log lines, and where the option is accepted."""

import json

import pytest
from typer.testing import CliRunner

from conquiet.cli.app import app
from conquiet.cli.logs import log_format, report, take_log_format


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONQUIET_LOG_FORMAT", "")


@pytest.mark.parametrize("given", [["--log-format", "json"], ["--log-format=json"]])
def test_the_format_is_accepted_anywhere_on_a_command_line(given: list[str]) -> None:
    arguments = ["conquiet", "inspect", *given, "orders"]

    take_log_format(arguments)

    assert arguments == ["conquiet", "inspect", "orders"]
    assert log_format() == "json"


def test_sentences_of_commands_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    take_log_format(["--log-format", "json"])

    report("no --redis-url was given", level="error", fix="give one")

    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["message"], line["fix"]) == ("error", "no --redis-url was given", "give one")


def test_an_unknown_format_is_refused() -> None:
    done = CliRunner().invoke(app, ["--log-format", "xml", "inspect", "orders"])

    assert done.exit_code == 2
    assert "console, json" in done.stderr
