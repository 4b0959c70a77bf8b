"""Tables and JSON on a terminal and in a pipe."""

import io
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from conquiet.cli.output import print_json, print_rows

HOSTILE = "\x1b]0;owned\x07 \x9b31m \u202e \ud800 \U000e0001 \x7f [/x] [bold]"


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """``on_terminal("latin-1", print_json, value)``: return the output on a terminal of 80 columns."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")

    def call(encoding: str, function: Any, *arguments: Any, **more: Any) -> str:
        got = io.BytesIO()
        with monkeypatch.context() as patch:
            terminal = Terminal(got, encoding=encoding)
            patch.setattr(sys, "stdout", terminal)
            function(*arguments, **more)
            terminal.flush()
            text = got.getvalue().decode(encoding)
        assert all(char.isprintable() or char == "\n" for char in text)
        return text

    return call


def test_a_table_on_a_terminal_shows_hostile_names_as_they_are_spelled(on_terminal: Callable[..., str]) -> None:
    text = on_terminal("utf-8", print_rows, f"Of {HOSTILE}", ["stream"], [{"stream": HOSTILE}], empty="")

    assert text.count("[/x]") == text.count("[bold]") == 2, "brackets are no markup"
    assert text.count(r"\x1b]0;owned\x07") == 2


def test_a_long_name_is_folded_and_not_cut(on_terminal: Callable[..., str]) -> None:
    name = "shop:" + "orders-" * 20
    columns = ["stream", *(f"number_{one}" for one in range(5))]

    text = on_terminal("utf-8", print_rows, "", columns, [dict.fromkeys(columns, 1) | {"stream": name}], empty="")

    assert "".join(line.split("│")[1].strip() for line in text.splitlines() if "│" in line) == name


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_json_commands_no_terminal_and_means_the_same_in_any_encoding(
    on_terminal: Callable[..., str], encoding: str
) -> None:
    value = {HOSTILE: ["häuser", "€", 1.5, None]}

    assert json.loads(on_terminal(encoding, print_json, value)) == value


def test_foreign_text_in_a_table_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows("x", ["name", "n", "yes", "none"], [{"name": "a\tb\nc", "n": 1.25, "yes": True}], empty="")

    assert capsys.readouterr().out == "name\tn\tyes\tnone\na\\tb\\nc\t1.2\tyes\t-\n"


def test_an_empty_table_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows("x", ["name"], [], empty="there is nothing")

    assert capsys.readouterr().out == "there is nothing\n"
