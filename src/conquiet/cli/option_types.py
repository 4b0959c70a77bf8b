"""Types of options. The parser accepts ``inf``, ``nan`` and ``1e309`` as floats; as seconds they are rejected.

See docs/decisions/0028.
"""

import math
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from conquiet.cli.logs import set_log_format

_LEVELS: Final = ("debug", "info", "warning", "error")
MAX_SECONDS: Final = 100 * 365 * 86_400.0
"""A hundred years. Longer times have the same effect, and clocks and servers cannot represent all of them."""


class AppPart(StrEnum):
    """The parts of an App that ``conquiet worker`` can run alone."""

    HANDLERS = "handlers"
    RELAY = "relay"
    SCHEDULER = "scheduler"


class JobPhaseName(StrEnum):
    """The phases of jobs that can be listed; the same words as ``management.JobPhase``."""

    WAITING = "waiting"
    DELAYED = "delayed"
    RUNNING = "running"
    RETRYING = "retrying"
    PARKED = "parked"
    BEHIND = "behind"
    DEAD = "dead"


def number_option(help_text: str, *names: str, least: float = 0) -> Any:
    """Return an option for a number that is finite and at least ``least``. For every option with a float."""
    return typer.Option(*names, min=least, callback=finite, help=help_text)


def finite(value: float) -> float:
    """Reject values that are not finite, and clamp to ``MAX_SECONDS``."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"a finite number is needed, got {value}")
    return min(value, MAX_SECONDS)


def _check_level(value: str) -> str:
    if value.lower() not in _LEVELS:
        raise typer.BadParameter(f"must be one of {', '.join(_LEVELS)}")
    return value


LogFormat = Annotated[
    str, typer.Option("--log-format", callback=set_log_format, help="Log lines as console (the default) or json.")
]
LogLevel = Annotated[str, typer.Option("--log-level", callback=_check_level, help=f"One of {', '.join(_LEVELS)}.")]
