"""Numbers that cannot be used: one sentence and exit code 2."""

import inspect
import typing

import pytest
import typer
from typer.main import get_command

from conquiet.cli.app import app
from conquiet.cli.option_types import MAX_SECONDS, finite

COMMAND = get_command(app)


def options_of(kind: type, group: typer.Typer = app, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every option of every command that takes this kind of number, each with the words that lead to it."""
    found: list[tuple[str, ...]] = []
    for command in group.registered_commands:
        assert command.callback is not None
        words = (*path, command.name or command.callback.__name__.replace("_", "-"))
        hints = typing.get_type_hints(command.callback)
        found += [
            (*words, "--" + name.replace("_", "-"))
            for name in inspect.signature(command.callback).parameters
            if hints[name] is kind
        ]
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        found += options_of(kind, inner.typer_instance, (*path, str(inner.name)))
    return found


FLOATS = options_of(float)


INTEGERS = options_of(int)


def refusal_of(*words: str) -> str:
    """Return the message of the parser."""
    with pytest.raises(typer.BadParameter) as refused:
        COMMAND.main(list(words), standalone_mode=False)
    assert refused.value.exit_code == 2
    return refused.value.format_message()


def test_all_options_with_a_number_are_covered() -> None:
    ages = {"--max-age-s", "--newer-than-s", "--older-than-s", "--inbox-retention-s"}
    floats = {"--grace-s", "--wait-s", "--delay-s", "--watch-s", "--min-idle-s", "--rate-per-s"} | ages
    assert {words[-1] for words in FLOATS} == floats
    assert {"--limit", "--batch", "--concurrency", "--health-port"} <= {words[-1] for words in INTEGERS}


def test_options_in_seconds_have_the_unit_in_their_name() -> None:
    """As in every public signature; a rate is per second."""
    assert [words for words in FLOATS if not words[-1].endswith("-s")] == []


@pytest.mark.parametrize("words", FLOATS, ids=" ".join)
def test_a_number_that_is_none_or_below_zero_is_refused(words: tuple[str, ...]) -> None:
    for value in ("inf", "1e309", "nan", "-inf", "-1", "abc", ""):
        text = refusal_of(*words[:-1], f"{words[-1]}={value}")
        assert text.startswith(f"Invalid value for '{words[-1]}'")
        assert ("a finite number is needed, got inf" in text) == (value in {"inf", "1e309"})


@pytest.mark.parametrize("words", INTEGERS, ids=" ".join)
def test_a_count_is_a_whole_number(words: tuple[str, ...]) -> None:
    for value in ("inf", "nan", "-1", "1.5", "abc", ""):
        assert refusal_of(*words[:-1], f"{words[-1]}={value}").startswith(f"Invalid value for '{words[-1]}'")


@pytest.mark.parametrize(
    "words", [("rabbit", "run", "--concurrency"), ("rabbit", "run", "--prefetch"), ("worker", "--concurrency")]
)
def test_a_number_that_is_too_large_is_refused(words: tuple[str, ...]) -> None:
    assert refusal_of(*words[:-1], f"{words[-1]}=99999999999999999999").startswith("Invalid value")


def test_longer_than_a_century_is_a_century() -> None:
    assert finite(1e308) == MAX_SECONDS
    assert finite(28.0) == 28.0


def test_nan_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="a finite number is needed, got nan"):
        finite(float("nan"))
