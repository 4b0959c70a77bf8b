"""What a person sees when a command fails: one sentence, what to do, and an exit code that means something.

0    done, and the answer is good
1    done, and the answer is bad: an error found, something lost, work that failed
2    nothing was done: the words were wrong, or a server could not be reached
130  interrupted by Ctrl-C (143 by SIGTERM), cleaned up first
"""

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import typer

from conquiet.errors import (
    ConfigurationError,
    ConquietError,
    MissingExtraError,
    NoSuchStreamError,
    QueueMissingError,
    WrongKeyTypeError,
)
from conquiet.kernel.extras import extra_for
from conquiet.kernel.redaction import printable, redact_url

P = ParamSpec("P")
R = TypeVar("R")

FAILED = 1
NOT_DONE = 2
INTERRUPTED = 130

_DEBUG_VARIABLE = "CONQUIET_DEBUG"


class CommandError(Exception):
    """A command cannot go on. ``str()`` is the sentence; ``fix`` says what to do."""

    def __init__(self, message: str, *, fix: str = "", exit_code: int = NOT_DONE) -> None:
        super().__init__(message)
        self.fix = fix
        self.exit_code = exit_code


class CannotConnectError(CommandError):
    """No server answers at a URL, or it does not let us in. The URL is shown without its secrets."""

    def __init__(self, what: str, url: str, error: BaseException) -> None:
        reason, fix = _why(error)
        super().__init__(f"{what} at {redact_url(url)} {reason}", fix=fix)


_REASONS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("noauth", "wrongpass", "authentication", "access denied", "access_refused", "1045"),
        "refused the user name or the password",
        "put the right ones into the URL: scheme://user:password@host",
    ),
    (("noperm",), "does not allow this user the command", "give the user the rights that docs/cli.md names"),
    (("1049", "unknown database"), "has no such database", "create it, or name another one in the URL"),
    (
        ("name or service", "nodename", "getaddrinfo", "name resolution"),
        "cannot be found: there is no such host",
        "check the host name in the URL",
    ),
    (
        ("timeout", "timed out"),
        "does not answer in time",
        "check that the server runs and that no firewall is in between",
    ),
    (
        ("refused", "connectionerror", "2003", "2002", "no such file"),
        "does not answer",
        "start the server, or give the right URL (flag, environment or conquiet.toml)",
    ),
)


def _why(error: BaseException) -> tuple[str, str]:
    """Return what happened and what to do, from the driver's error. Its text is read and never repeated."""
    text = f"{type(error).__name__} {error} {error.__cause__ or ''}".lower()
    for signs, reason, fix in _REASONS:
        if any(sign in text for sign in signs):
            return reason, fix
    return f"cannot be used ({type(error).__name__})", "see the reason with --debug"


def debugging() -> bool:
    """Whether tracebacks were asked for."""
    return bool(os.environ.get(_DEBUG_VARIABLE))


def set_debugging() -> None:
    """Ask for tracebacks, in child processes too."""
    os.environ[_DEBUG_VARIABLE] = "1"


def reported(command: Callable[P, R]) -> Callable[P, R]:
    """Make a command end with one sentence instead of a traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with reporting():
            return command(*args, **kwargs)

    return run


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Turn what is raised inside into a sentence on stderr and an exit code."""
    try:
        yield
    except CommandError as error:
        complain(str(error), error.fix)
        raise typer.Exit(error.exit_code) from None
    except (ConfigurationError, MissingExtraError, NoSuchStreamError, QueueMissingError, WrongKeyTypeError) as error:
        complain(str(error))
        raise typer.Exit(NOT_DONE) from None
    except ConquietError as error:
        complain(str(error))
        raise typer.Exit(FAILED) from None
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except BrokenPipeError:
        # The reader of our output left (``| head``). Nothing more can be said; do not say it again at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from None
    except OSError as error:
        complain(
            f"the machine refused: {error.strerror or type(error).__name__}", "see where with --debug, and mend that"
        )
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        complain("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:  # noqa: BLE001 - the last one: a traceback is for --debug
        extra = extra_for(error) if isinstance(error, ModuleNotFoundError) else None
        if extra:
            complain(str(extra))
            raise typer.Exit(NOT_DONE) from None
        # Its text may hold anything of a message or of a URL: its class is what may be shown.
        complain(
            f"this should not have happened ({type(error).__name__})", "report it, with what --debug shows in addition"
        )
        raise typer.Exit(FAILED) from None


def complain(sentence: str, fix: str = "") -> None:
    """Say what went wrong on stderr, and how to mend it."""
    if debugging():
        traceback.print_exc()
    typer.echo(f"conquiet: {printable(sentence, limit=2_000)}", err=True)
    if fix:
        typer.echo(f"  fix: {fix}", err=True)
