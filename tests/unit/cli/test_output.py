"""What is printed: no foreign text commands the terminal, and no state of the standard streams ends in a traceback."""

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from conquiet.cli.failures import CommandError, reporting
from conquiet.cli.output import print_json, print_rows
from conquiet.cli.payloads import read_payloads
from conquiet.cli.settings import DB, REDIS, find_url

HOSTILE = "\x1b]0;owned\x07 \x9b31m \u202e \ud800 \U000e0001 \x7f [/x] [bold]"


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``on_terminal("latin-1", print_json, value)``: what a terminal of 80 columns gets from that call."""
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


# ---------------------------------------------------------------- tables and JSON
def test_a_table_on_a_terminal_shows_hostile_names_as_they_are_spelled(on_terminal: Any) -> None:
    text = on_terminal("utf-8", print_rows, f"Of {HOSTILE}", ["stream"], [{"stream": HOSTILE}], empty="")

    assert text.count("[/x]") == text.count("[bold]") == 2, "brackets are no markup"
    assert text.count(r"\x1b]0;owned\x07") == 2


def test_a_long_name_is_folded_and_not_cut(on_terminal: Any) -> None:
    name = "shop:" + "orders-" * 20
    columns = ["stream", *(f"number_{one}" for one in range(5))]

    text = on_terminal("utf-8", print_rows, "", columns, [dict.fromkeys(columns, 1) | {"stream": name}], empty="")

    assert "".join(line.split("│")[1].strip() for line in text.splitlines() if "│" in line) == name


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_json_commands_no_terminal_and_means_the_same_in_any_encoding(on_terminal: Any, encoding: str) -> None:
    value = {HOSTILE: ["häuser", "€", 1.5, None]}

    assert json.loads(on_terminal(encoding, print_json, value)) == value


# ---------------------------------------------------------------- standard streams
def test_streams_that_are_closed_are_there_again() -> None:
    """With number 1 free, the next connection would get it, and with it whatever a child prints."""
    code = (
        "import os, sys; from conquiet.cli.streams import mend_standard_streams as mend; mend(); "
        "[os.fstat(number) for number in range(3)]; print(sys.stdout.isatty()); sys.exit(sys.stdin is not None)"
    )
    closing = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code]

    assert subprocess.run(closing, check=False, timeout=60).returncode == 0


def test_a_character_that_a_terminal_does_not_have_is_escaped(tmp_path: Path) -> None:
    code = "from conquiet.cli.streams import mend_standard_streams as mend; mend(); print('50 €')"
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, check=False, timeout=60
    )

    assert (done.returncode, done.stdout) == (0, rb"50 \u20ac" + b"\n")


def test_a_closed_stdin_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)

    with pytest.raises(CommandError, match="stdin is closed"):
        list(read_payloads("-"))


# ---------------------------------------------------------------- what nobody expected
@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "the machine refused: No space left on device"),
        (KeyError("geheim"), "this should not have happened (KeyError)"),
    ],
)
def test_an_error_that_nobody_expected_is_one_sentence_too(
    error: Exception, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONQUIET_DEBUG", raising=False)
    with pytest.raises(typer.Exit) as ended, reporting():
        raise error

    said = capsys.readouterr().err
    assert ended.value.exit_code == 1
    assert said.startswith(f"conquiet: {sentence}\n  fix: ")
    assert "geheim" not in said


@pytest.mark.parametrize("error", [typer.Exit(7), typer.Abort(), typer.BadParameter("no")])
def test_what_the_parser_raises_is_left_to_it(error: Exception) -> None:
    with pytest.raises(type(error)), reporting():
        raise error


# ---------------------------------------------------------------- conquiet.toml
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("redis_url = geheim", r"conquiet.toml is not TOML \(at line 1, column 13\)"),
        ("redis_url = 'geheim", r"conquiet.toml is not TOML \(at line 1, column 20\)|at end of document"),
        ("x = " + "[" * 5_000, "conquiet.toml (cannot be read|is not TOML)"),
        ("redis-url = 'redis://h'", "a setting 'redis-url' that nobody knows"),
        ("[redis]\nurl = 'redis://h'", "a setting 'redis' that nobody knows"),
        ("redis_url = ['redis://h']", "redis_url in conquiet.toml must be a string"),
        ("redis_url = '\udcff'", "cannot be read|is not TOML"),
    ],
)
def test_a_file_that_is_wrong_is_one_sentence(
    content: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (REDIS, "CONQUIET_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("conquiet.toml").write_bytes(content.encode("utf-8", "surrogateescape"))

    with pytest.raises(CommandError, match=sentence) as refused:
        find_url("", REDIS)

    assert refused.value.fix
    assert "geheim" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_folder_in_place_of_the_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONQUIET_CONFIG", str(tmp_path))
    monkeypatch.delenv(DB, raising=False)

    with pytest.raises(CommandError, match=r"cannot be read \(IsADirectoryError\)"):
        find_url("", DB)


def test_one_file_may_hold_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"redis_url": "redis://h", "db_url": "sqlite:///x", "rabbit_url": "amqp://h"}
    file = tmp_path / "shop.toml"
    file.write_text("".join(f'{key} = "{value}"\n' for key, value in settings.items()), encoding="utf-8")
    monkeypatch.setenv("CONQUIET_CONFIG", str(file))
    monkeypatch.delenv(DB, raising=False)

    assert find_url("", DB) == "sqlite:///x"
