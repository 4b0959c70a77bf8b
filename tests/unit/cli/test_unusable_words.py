"""Numbers and URLs that nobody can use: one sentence and exit code 2, before any server is asked."""

import inspect
import typing
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from conquiet.cli.app import app
from conquiet.cli.numbers import FOR_EVER_S, finite

SECRET = "geheim"
COMMAND = get_command(app)
VARIABLES = ("CONQUIET_REDIS_URL", "CONQUIET_DB_URL", "CONQUIET_RABBIT_URL", "CONQUIET_CONFIG", "CONQUIET_DEBUG")


def options_of(kind: type, group: typer.Typer = app, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every option of every command that takes this kind of number, each with the words that lead to it."""
    found: list[tuple[str, ...]] = []
    for command in group.registered_commands:
        assert command.callback is not None
        words = (*path, command.name or command.callback.__name__)
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


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the words and return what was said, after seeing that it is a refusal."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        assert COMMAND.main(list(words), standalone_mode=False) == 2
        text = "".join(capsys.readouterr())
        assert SECRET not in text
        assert "fix: " in text or "; write it as " in text or ": write " in text, "what to do"
        return text

    return run


def refusal_of(*words: str) -> str:
    """Return what the parser says."""
    with pytest.raises(typer.BadParameter) as refused:
        COMMAND.main(list(words), standalone_mode=False)
    assert refused.value.exit_code == 2
    return refused.value.format_message()


def test_all_options_with_a_number_are_looked_at() -> None:
    assert {words[-1] for words in FLOATS} == {"--grace", "--delay", "--watch", "--min-idle", "--older-than", "--rate"}
    assert {"--limit", "--batch", "--concurrency", "--health-port"} <= {words[-1] for words in INTEGERS}


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
def test_more_than_anybody_can_hold_is_refused(words: tuple[str, ...]) -> None:
    assert refusal_of(*words[:-1], f"{words[-1]}=99999999999999999999").startswith("Invalid value")


def test_what_is_longer_than_a_clock_can_count_is_simply_long() -> None:
    assert finite(1e308) == FOR_EVER_S
    assert finite(28.0) == 28.0


def test_nan_is_refused_whatever_the_parser_thinks_of_it() -> None:
    with pytest.raises(typer.BadParameter, match="a finite number is needed, got nan"):
        finite(float("nan"))


# ---------------------------------------------------------------- URLs
ASKED = ["inspect"], ["schedule", "list"], ["demo"]


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("redis://:geheim@[::1/0", "the Redis URL cannot be read"),
        ("redis://:geheim@host:port/0", "the Redis URL cannot be read"),
        ("redis://:geheim@host:99999/0", "the Redis URL cannot be read"),
        ("redis://:geheim@host/0?foo=abc", "the Redis URL cannot be read"),
        ("redis://:geheim@host/0?socket_timeout=abc", "the Redis URL cannot be read"),
        ("redis://:geheim@host/0?protocol=7", "the Redis URL cannot be read"),
        ("rediss://:geheim@host/0?ssl_cert_reqs=abc", "the Redis URL cannot be read"),
        ("http://:geheim@host/", "the Redis URL cannot be read"),
        ("geheim", "the Redis URL cannot be read"),
        ("redis://:1#geheim@host/0", "has an @ behind its host"),
        ("redis://:1?geheim@host/0", "has an @ behind its host"),
        ("redis://:1/geheim@host/0", "has an @ behind its host"),
        ("redis://127.0.0.1:1?password=geheim@", "Redis at redis://*** does not answer"),
        ("redis://:geheim@host/shop", "the database in the Redis URL must be a number"),
        ("redis://:geheim@host/-1", "the database in the Redis URL must be a number"),
        ("redis://:geheim@..:1/0", "the Redis URL cannot be used (UnicodeError)"),
        ("unix://:geheim@/nowhere.sock", "Redis at unix://***@/nowhere.sock does not answer"),
        ("redis://:geheim@[::1]:1/0", "Redis at redis://***@[::1]:1/0 does not answer"),
    ],
)
def test_a_redis_url_that_cannot_be_used(said: Any, words: list[str], url: str, sentence: str) -> None:
    assert sentence in said(*words, "--redis-url", url)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("mysql+pymysql://u:geheim@host:port/db", "the database URL cannot be used (ValueError)"),
        ("mysql+pymysql://u:geheim@[::1:1/db", "the database URL cannot be used (ValueError)"),
        ("mysql+pymysql://u:geheim@127.0.0.1:1/db?foo=abc", "the database URL cannot be used (TypeError)"),
        ("mysql+pymysql://u:geheim@127.0.0.1:1/db?charset=nope", "the database URL cannot be used (AttributeError)"),
        ("mysql+pymysql://u:geheim@127.0.0.1:1/db?connect_timeout=x", "the database URL cannot be used (ValueError)"),
        ("mysql+pymysql://u:geheim@127.0.0.1:1/db?connect_timeout=-1", "the database URL cannot be used (ValueError)"),
        ("mysql+pymysql://u:geheim@127.0.0.1:1/db?ssl_ca=/nowhere", "the database URL cannot be used (FileNotFound"),
        ("nosql://u:geheim@host/db", "the database URL cannot be used (NoSuchModuleError)"),
        ("geheim", "the database URL cannot be used (ArgumentError)"),
        ("mysql+pymysql://u:geheim@[::1]:1/db", "the database at mysql+pymysql://***@[::1]:1/db does not answer"),
        ("sqlite:////nowhere/at/all.db", "the database at sqlite:////nowhere/at/all.db cannot be used"),
        ("sqlite://", "a database in memory ends with this command"),
        ("sqlite:///:memory:", "a database in memory ends with this command"),
    ],
)
def test_a_database_url_that_cannot_be_used(said: Any, url: str, sentence: str) -> None:
    assert sentence in said("db", "init", "--db-url", url)


@pytest.mark.parametrize("words", [("publish", "q", "{}"), ("dead-letters", "list", "q", "--rabbit")])
@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("amqp://u:geheim@[::1:1/", "not an AMQP URL that can be used"),
        ("amqp://u:geheim@host:port/", "not an AMQP URL that can be used"),
        ("amqp://u:geheim@host/?foo=abc", "not an AMQP URL that can be used"),
        ("amqp://u@host/", "not an AMQP URL that can be used"),
        ("http://u:geheim@host/", "an AMQP URL starts with amqp://"),
        ("amqp://u:geheim@h\udcff:1/", "the RabbitMQ URL cannot be used (UnicodeEncodeError)"),
        ("amqp://u:geheim@[::1]:1/", "RabbitMQ at amqp://***@[::1]:1/ does not answer"),
    ],
)
def test_a_rabbitmq_url_that_cannot_be_used(said: Any, words: tuple[str, ...], url: str, sentence: str) -> None:
    assert sentence in said(*words, "--rabbit-url", url)
