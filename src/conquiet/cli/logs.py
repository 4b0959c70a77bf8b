"""Write log lines of the commands to stderr, as console lines or JSON.

``--log-format`` is stored in the environment, like ``--debug``, so that child processes of a worker inherit it.
"""

import json
import logging
import os
import sys
import time

import typer

from conquiet.core.log_format import formatter_named
from conquiet.core.redaction import printable

FORMATS = ("console", "json")
_VARIABLE = "CONQUIET_LOG_FORMAT"


def log_format() -> str:
    """Return the format in use."""
    found = os.environ.get(_VARIABLE, "")
    return found if found in FORMATS else FORMATS[0]


def is_json() -> bool:
    """Return whether lines are JSON."""
    return log_format() == "json"


def set_log_format(value: str) -> str:
    """Use this format from now on, in child processes too."""
    if not value:
        return value
    if value not in FORMATS:
        raise typer.BadParameter(f"must be one of {', '.join(FORMATS)}")
    os.environ[_VARIABLE] = value
    return value


def take_log_format(arguments: list[str]) -> None:
    """Remove ``--log-format console|json`` from a command line. Like ``--debug`` it is accepted anywhere."""
    for at, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name != "--log-format":
            continue
        size = 1 if value else 2
        value = value or (arguments[at + 1] if at + 1 < len(arguments) else "")
        if value in FORMATS:
            set_log_format(value)
            del arguments[at : at + size]
        return


def set_up_logging(level: str) -> None:
    """Send log lines to stderr, unless logging is configured already."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter_named(log_format(), sys.stderr))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def report(sentence: str, *, level: str = "info", fix: str = "") -> None:
    """Print a message of a command on stderr, in the format in use."""
    if is_json():
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"time": now, "level": level, "logger": "conquiet", "process": os.getpid(), "message": sentence}
        typer.echo(json.dumps(line | ({"fix": fix} if fix else {})), err=True)
        return
    typer.echo(f"conquiet: {printable(sentence, limit=2_000)}", err=True)
    if fix:
        typer.echo(f"  fix: {fix}", err=True)
