"""Read JSON objects from an argument, ``@file`` or ``-`` (stdin); files hold one object per line."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import typer

from conquiet.cli.errors import FAILED, NOT_DONE, CommandError


@contextmanager
def _opened(source: str) -> Iterator[IO[bytes]]:
    if source == "-":
        yield _stdin()
        return
    path = Path(source[1:])
    try:
        file = path.open("rb")
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror})", fix="check the name after @") from error
    with file:
        yield file


def _stdin() -> IO[bytes]:
    """Return stdin as a separate file: the interpreter aborts at exit if a thread still reads ``sys.stdin``."""
    if sys.stdin is None:
        raise CommandError("stdin is closed", fix="pipe something into it, or give @FILE")
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except OSError:  # not a real file
        return sys.stdin.buffer


def read_payloads(source: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of ``source``. Empty lines are skipped; an invalid line is reported by its number.

    The content of the line is not shown, because it may be personal data.
    """
    if source != "-" and not source.startswith("@"):
        yield _parsed(source.encode(), "the JSON given", exit_code=NOT_DONE)
        return
    with _opened(source) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _parsed(line, f"line {number}")


def _parsed(text: bytes, where: str, *, exit_code: int = FAILED) -> dict[str, Any]:
    import msgspec

    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = None
        problem = "is not valid JSON"
    else:
        problem = "is JSON, but not an object"
    if not isinstance(value, dict):
        raise CommandError(
            f"{where} {problem}", fix='write one object per line, such as {"order": 1}', exit_code=exit_code
        )
    return value


@contextmanager
def report_partial_failure(
    verb: str, count: Callable[[], int], *, noun: str = "", refusal: type[Exception] = CommandError
) -> Iterator[None]:
    """Report how much was sent if the block that sends fails.

    Args:
        verb: Participle for the payloads that were sent, such as "emitted".
        count: Returns the number of payloads so far.
        noun: Printed after the number.
        refusal: A further error that one payload causes: the payloads before it were sent.
    """
    from conquiet.errors import PublishError, QueueError

    try:
        yield
    except (CommandError, refusal) as error:
        if isinstance(error, CommandError) and error.exit_code == NOT_DONE:
            raise  # the source cannot be read
        raise CommandError(
            f"{error}; {count()}{noun} before it are {verb}",
            fix="correct it, then send it and what follows",
            exit_code=FAILED,
        ) from error.__cause__
    except (QueueError, PublishError, KeyboardInterrupt, SystemExit) as error:
        if count() or not isinstance(error, QueueError):
            typer.echo(f"conquiet: at least {count()}{noun} are {verb}", err=True)
        raise
