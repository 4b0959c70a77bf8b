"""Errors are one sentence and an exit code."""

import errno
import os

import pytest
import typer

from conquiet.cli.errors import CannotConnectError, exit_on_error
from conquiet.errors import ConfigurationError, QueueError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError("refused"), "does not answer"),
        (TimeoutError("timed out"), "does not answer in time"),
        (OSError("Name or service not known"), "there is no such host"),
        (Exception("WRONGPASS invalid"), "refused the user name or the password"),
        (Exception("(1049, \"Unknown database 'shop'\")"), "has no such database"),
        (OSError("[SSL] certificate verify failed: self-signed certificate (_ssl.c:1045)"), "is not trusted"),
        (Exception('FATAL:  database "shop" does not exist'), "has no such database"),
        (Exception('FATAL:  role "shop" does not exist'), "refused the user name"),
        (Exception("NOPERM this user"), "does not allow this user the command"),
        (OSError("Error 111 connecting to 127.0.0.1:21045. Connection refused."), "does not answer"),
        (OSError("Error 111 connecting to 127.0.0.1:10491. Connection refused."), "does not answer"),
        (Exception("(1045, \"Accès refusé pour l'utilisateur 'shop'@'10.0.0.1'\")"), "refused the user name"),
        (Exception("something else, jane@example.org"), "cannot be used (Exception)"),
    ],
)
def test_an_unreachable_server_is_explained_without_the_drivers_text(error: Exception, words: str) -> None:
    said = CannotConnectError("Redis", "redis://user:geheim@host:1/0", error)

    assert words in str(said)
    assert said.fix
    assert "geheim" not in str(said)
    assert "jane@" not in str(said)


@pytest.mark.parametrize(("error", "code"), [(QueueError("no"), 1), (KeyboardInterrupt(), 130), (BrokenPipeError(), 1)])
def test_an_exception_of_a_command_becomes_an_exit_code(
    error: BaseException, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, exit_on_error():
        raise error

    assert ended.value.exit_code == code


def test_the_remedy_of_a_wrong_setting_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, exit_on_error():
        raise ConfigurationError("the file is not TOML", fix="correct the file")

    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == "conquiet: the file is not TOML\n  fix: correct the file\n"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "system error: No space left on device"),
        (KeyError("geheim"), "internal error (KeyError)"),
    ],
)
def test_an_unexpected_error_is_one_sentence_too(
    error: Exception, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONQUIET_DEBUG", raising=False)
    with pytest.raises(typer.Exit) as ended, exit_on_error():
        raise error

    said = capsys.readouterr().err
    assert ended.value.exit_code == 1
    assert said.startswith(f"conquiet: {sentence}\n  fix: ")
    assert "geheim" not in said


@pytest.mark.parametrize("error", [typer.Exit(7), typer.Abort(), typer.BadParameter("no")])
def test_errors_of_the_parser_are_not_translated(error: Exception) -> None:
    with pytest.raises(type(error)), exit_on_error():
        raise error
