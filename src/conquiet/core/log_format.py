"""Log formatters: a console format with colours on a terminal, and JSON, one object per line.

Both show the fields passed as ``extra``, which the standard format omits. The console format does not repeat facts that
conquiet's log lines already contain in the text.
"""

import json
import logging
import os
import time
from collections.abc import Mapping
from typing import Any, Final, TextIO

from conquiet.core.redaction import printable

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS: Final = {logging.WARNING: "\033[33m", logging.ERROR: "\033[31m", logging.CRITICAL: "\033[1;31m"}
_DIM: Final = "\033[2m"
_RESET: Final = "\033[0m"


class ConsoleFormatter(logging.Formatter):
    """Formats time, level, process, logger and message, then ``name=value`` for each extra field.

    Args:
        colours: Colour the level, for a terminal.
    """

    def __init__(self, *, colours: bool = False) -> None:
        super().__init__("%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s")
        self._colours = colours

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line without a traceback."""
        line = super().formatMessage(record)
        named: Mapping[str, object] = record.args if isinstance(record.args, Mapping) else {}
        fields = {name: value for name, value in extra_of(record).items() if name not in named}
        line += "".join(f" {name}={printable(value)}" for name, value in fields.items())
        if not self._colours:
            return line
        colour = _COLOURS.get(record.levelno, "")
        head, _, rest = line.partition(f" {record.levelname} ")
        return f"{_DIM}{head}{_RESET} {colour}{record.levelname}{_RESET} {rest}"


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object: time, level, logger, process, message, each extra field, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        for name, value in extra_of(record).items():
            line.setdefault(name, value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=printable)


def extra_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that were passed as ``extra``."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def wants_colours(stream: TextIO) -> bool:
    """Return True for a terminal, unless ``NO_COLOR`` is set or ``TERM`` is ``dumb``."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def formatter_named(name: str, stream: TextIO) -> logging.Formatter:
    """Return the formatter of ``--log-format``: ``json`` or ``console``."""
    return JsonFormatter() if name == "json" else ConsoleFormatter(colours=wants_colours(stream))
