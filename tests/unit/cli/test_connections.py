"""Unusable URLs: one sentence and exit code 2, before any server is contacted."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command

from conquiet.cli.app import app
from conquiet.cli.connections import open_database

SECRET = "geheim"


COMMAND = get_command(app)


VARIABLES = ("CONQUIET_REDIS_URL", "CONQUIET_DB_URL", "CONQUIET_RABBIT_URL", "CONQUIET_CONFIG", "CONQUIET_DEBUG")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command line, check that it is refused, and return its output."""
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
        ("redis://:geheim@..:1/0", "the Redis URL cannot be used (Unicode"),
        ("unix://:geheim@/nowhere.sock", "Redis at unix://***@/nowhere.sock does not answer"),
        ("redis://:geheim@[::1]:1/0", "Redis at redis://***@[::1]:1/0 does not answer"),
    ],
)
def test_a_redis_url_that_cannot_be_used(said: Callable[..., str], words: list[str], url: str, sentence: str) -> None:
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
def test_a_database_url_that_cannot_be_used(said: Callable[..., str], url: str, sentence: str) -> None:
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
def test_a_rabbitmq_url_that_cannot_be_used(
    said: Callable[..., str], words: tuple[str, ...], url: str, sentence: str
) -> None:
    assert sentence in said(*words, "--rabbit-url", url)


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+pysqlite", "sqlite+aiosqlite"])
def test_a_database_url_of_an_app_works_in_commands_too(tmp_path: Path, driver: str) -> None:
    """An app accepts a URL with an asynchronous driver; 'conquiet db init' failed with MissingGreenlet on it."""
    with open_database(f"{driver}:///{tmp_path / 'shop.db'}") as engine, engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
