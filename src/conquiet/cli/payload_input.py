"""Read JSON objects from an argument, ``@file`` or ``-`` (stdin); files hold one object per line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

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


def partial_failure(error: Exception, sent: str) -> CommandError:
    """Return the error for a payload that ended the command. A source that cannot be read is reported unchanged."""
    if isinstance(error, CommandError) and error.exit_code == NOT_DONE:
        return error
    return CommandError(f"{error}; {sent}", fix="correct it, then send it and what follows", exit_code=FAILED)
