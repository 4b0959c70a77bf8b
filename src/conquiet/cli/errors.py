"""Turn exceptions into one sentence, a fix, and an exit code.

0    done, and the result is good
1    done, and the result is bad: an error was found, something is lost, or work failed
2    nothing was done: a usage error, or a server could not be reached
130  interrupted by Ctrl-C (143 by SIGTERM), after the clean-up

See docs/decisions/0028.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator

import typer

from conquiet.cli.logs import report
from conquiet.core.extras import extra_for
from conquiet.core.redaction import redact_url
from conquiet.errors import (
    ConfigurationError,
    ConquietError,
    MissingExtraError,
    NoSuchStreamError,
    QueueMissingError,
    WrongKeyTypeError,
)

FAILED = 1
NOT_DONE = 2
INTERRUPTED = 130

_DEBUG_VARIABLE = "CONQUIET_DEBUG"
_USAGE_ERRORS = (ConfigurationError, MissingExtraError, NoSuchStreamError, QueueMissingError, WrongKeyTypeError)


class CommandError(Exception):
    """A command cannot continue. ``str()`` is the reason; ``fix`` explains how to proceed."""

    def __init__(self, message: str, *, fix: str = "", exit_code: int = NOT_DONE) -> None:
        super().__init__(message)
        self.fix = fix
        self.exit_code = exit_code


class CannotConnectError(CommandError):
    """No server replies at a URL, or it refuses the login. The URL is shown without its secrets."""

    def __init__(self, what: str, url: str, error: BaseException) -> None:
        reason, fix = _explain(error)
        super().__init__(f"{what} at {redact_url(url)} {reason}", fix=fix)


_REASONS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("noauth", "wrongpass", "authentication", "access denied", "access_refused", "(1045,", 'fatal:  role "'),
        "refused the user name or the password",
        "put the right ones into the URL: scheme://user:password@host",
    ),
    (("noperm",), "does not allow this user the command", "give the user the rights that docs/cli.md names"),
    (
        ("(1049,", "unknown database", 'fatal:  database "'),
        "has no such database",
        "create it, or name another one in the URL",
    ),
    (
        ("certificate verify failed",),
        "has a certificate that is not trusted",
        (
            "name the file of its authority in the URL (RabbitMQ: cacertfile, Redis: ssl_ca_certs, MySQL: ssl_ca, "
            "PostgreSQL: sslrootcert), and the host as the certificate names it"
        ),
    ),
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
        ("refused", "connectionerror", "(2003,", "(2002,", "no such file"),
        "does not answer",
        "start the server, or give the right URL (flag, environment or conquiet.toml)",
    ),
)


def _explain(error: BaseException) -> tuple[str, str]:
    """Return reason and fix. The text of the driver's error is searched and never shown."""
    text = f"{type(error).__name__} {error} {error.__cause__ or ''}".lower()
    for signs, reason, fix in _REASONS:
        if any(sign in text for sign in signs):
            return reason, fix
    return f"cannot be used ({type(error).__name__})", "run with --debug for the reason"


def set_debugging() -> None:
    """Show tracebacks, in child processes too."""
    os.environ[_DEBUG_VARIABLE] = "1"


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Print an exception as a sentence on stderr and exit with its code."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except BrokenPipeError:
        # The reader of the output has closed the pipe (``| head``): nothing can be written any more, not even at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from None
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last resort: a traceback is for --debug
        sentence, fix, exit_code = _describe(error)
        report_error(sentence, fix)
        raise typer.Exit(exit_code) from None


def _describe(error: BaseException) -> tuple[str, str, int]:
    """Return sentence, fix and exit code."""
    match error:
        case CommandError():
            return str(error), error.fix, error.exit_code
        case ConquietError():
            return str(error), fix_of(error), NOT_DONE if isinstance(error, _USAGE_ERRORS) else FAILED
        case OSError():
            reason = error.strerror or type(error).__name__
            return f"system error: {reason}", "run with --debug for details", FAILED
        case KeyboardInterrupt():
            return "interrupted", "", INTERRUPTED
        case ModuleNotFoundError() if (extra := extra_for(error)) is not None:
            return str(extra), "", NOT_DONE
        case _:
            # Its text may hold parts of a message or of a URL, so only its class is shown.
            return f"internal error ({type(error).__name__})", "report it, with the output of --debug", FAILED


def fix_of(error: BaseException) -> str:
    """Return the remedy that an error carries; empty if there is none, or its text contains it."""
    fix: str = getattr(error, "fix", "")
    return fix


def report_error(sentence: str, fix: str = "") -> None:
    """Print reason and fix on stderr."""
    if os.environ.get(_DEBUG_VARIABLE):
        traceback.print_exc()
    report(sentence, level="error", fix=fix)
