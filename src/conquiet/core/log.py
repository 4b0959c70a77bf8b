"""Log lines that carry their facts in the text, for people, and in ``extra``, for machines, with one call.

    logger = FactLogger(__name__)
    logger.warning("stream is kept long by group %(group)s", group=group, stream=stream)

    text     stream is kept long by group billing [stream=orders]
    extra    group="billing", stream="orders"

The template is a constant, so that a log store can group by it. A fact that the template does not name is appended. A
fact that is None or empty is left out. Foreign text (ids, names) is escaped and truncated.

``failure`` logs an exception: its class, the line that raised it and the frames, without any value. The text of an
exception often quotes the message, so it is shown only for conquiet's errors, which quote nothing. A whole traceback,
which ends in that text, is logged only if ``show_tracebacks`` or ``log_tracebacks`` of a worker enables it.

See docs/decisions/0058.
"""

import functools
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

from conquiet.core.redaction import printable, scrub_credentials
from conquiet.errors import ConquietError

_SHOWN: Final = 500
_FRAMES: Final = 12
_LIBRARY_FRAMES: Final = 3
_CAUSES: Final = 5
_PACKAGE: Final = str(Path(__file__).parent.parent)
_LIBRARIES: Final = ("site-packages", "dist-packages", os.path.dirname(os.__file__), "<frozen")  # noqa: PTH120
_NAMED: Final = re.compile(r"%\((\w+)\)")
_DESCRIPTION: Final = {"error": ": %(error)s", "place": " at %(place)s", "reason": ": %(reason)s"}
"""Suffixes of a line for the facts that describe an exception."""
_NUMBERS: Final = {int, float}
_AS_THEY_ARE: Final = (int, float, dict, list, tuple)

_Frame = tuple[str, int, str]
"""File, line and function."""

_describers: list[Callable[[BaseException], str | None]] = []

_tracebacks = bool(os.environ.get("CONQUIET_DEBUG"))  # set by --debug, for child processes too


def show_tracebacks(*, shown: bool = True) -> None:
    """Enable whole tracebacks in this process. They contain exception texts, which may quote messages."""
    global _tracebacks  # noqa: PLW0603 - one switch for the process, like logging itself
    _tracebacks = shown


def add_describer(describe: Callable[[BaseException], str | None]) -> None:
    """Register a function that describes errors of a library without any value. It returns None for other errors."""
    if describe not in _describers:
        _describers.append(describe)


class FactLogger:
    """A logger that takes facts as keywords.

    Args:
        name: The module's name.
    """

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def is_enabled(self, level: int) -> bool:
        """Return whether a line of this level is logged. Saves callers from collecting unused facts."""
        return self._logger.isEnabledFor(level)

    def debug(self, text: str, /, **facts: object) -> None:
        """Log at DEBUG."""
        if self._logger.isEnabledFor(logging.DEBUG):
            self._log(logging.DEBUG, text, facts)

    def info(self, text: str, /, **facts: object) -> None:
        """Log at INFO."""
        if self._logger.isEnabledFor(logging.INFO):
            self._log(logging.INFO, text, facts)

    def warning(self, text: str, /, **facts: object) -> None:
        """Log at WARNING."""
        if self._logger.isEnabledFor(logging.WARNING):
            self._log(logging.WARNING, text, facts)

    def error(self, text: str, /, **facts: object) -> None:
        """Log at ERROR."""
        if self._logger.isEnabledFor(logging.ERROR):
            self._log(logging.ERROR, text, facts)

    def failure(
        self, level: int, text: str, error: BaseException | None, /, *, tracebacks: object = False, **facts: object
    ) -> None:
        """Log an exception: class, line and frames. The error text is logged for conquiet's errors only.

        Args:
            level: Level of the line.
            text: Template of the line.
            error: The exception. None logs only the text and the facts.
            tracebacks: Add the whole traceback.
            **facts: Further facts.
        """
        if self._logger.isEnabledFor(level):
            described = describe_error(error)
            shown = error if error is not None and (tracebacks or _tracebacks) else None
            self._log(level, text, facts | described, tuple(described), shown)

    def _log(
        self,
        level: int,
        text: str,
        facts: dict[str, object],
        described: tuple[str, ...] = (),
        error: BaseException | None = None,
    ) -> None:
        """Log an enabled line. ``described`` names the facts that describe an exception."""
        shown = {
            name: value if type(value) in _NUMBERS else _safe(value)
            for name, value in facts.items()
            if value is not None and value != ""
        }
        exc_info = None if error is None else (type(error), error, error.__traceback__)
        # Like Logger.log, but the caller of warning() is at a known depth: searching for it costs as much as all of the
        # formatting here.
        caller = sys._getframe(2)  # noqa: SLF001 - as in logging
        code = caller.f_code
        record = self._logger.makeRecord(
            self._logger.name,
            level,
            code.co_filename,
            caller.f_lineno,
            _template(text, tuple(shown), described),
            (),
            exc_info,
            code.co_name,
            shown,
        )
        record.args = shown  # passed above, logging would check its type, at a tenth of the line's cost
        self._logger.handle(record)


def describe_error(error: BaseException | None) -> dict[str, str]:
    """Return the facts of an exception that may be logged: ``error``, ``place``, ``frames``, ``reason``."""
    if error is None:
        return {}
    described = {"error": type(error).__name__}
    if error.__traceback__ is not None:
        place, frames = _shown_frames(_frames_of(error.__traceback__))
        described["place"] = place
        if frames:
            described["frames"] = frames
    if reason := reason_of(error):
        described["reason"] = reason
    return described


def reason_of(error: BaseException) -> str:
    """Return the text of a conquiet error or of a conquiet error among its causes, else a describer's text or ""."""
    current: BaseException | None = error
    for _ in range(_CAUSES):
        if isinstance(current, ConquietError):
            try:
                return printable(scrub_credentials(str(current)), limit=_SHOWN)
            except Exception:  # noqa: BLE001 - the __str__ of a user's subclass may fail
                return ""
        if current is None:
            break
        current = current.__cause__
    for describe in _describers:
        if said := describe(error):
            return said
    return ""


def _frames_of(trace: TracebackType | None) -> tuple[_Frame, ...]:
    # traceback.extract_tb reads the source files, which costs more than the rest of a log line.
    frames = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return tuple(frames)


@functools.lru_cache(maxsize=512)
def _shown_frames(frames: tuple[_Frame, ...]) -> tuple[str, str]:
    """Return the last frame of the application, and its frames with the first few of the library that it called.

    Frames before the application's first frame (pool thread, conquiet's adapters) are the same for every message and
    are omitted. If there is no frame of the application, all are shown. Results are cached, because a handler usually
    fails at the same place; paths are relative to the current folder at the first failure.
    """
    folder = _current_folder()
    own = [at for at, (filename, _, _) in enumerate(frames) if _is_of_application(filename)]
    first, last = (own[0], own[-1]) if own else (0, len(frames) - 1)
    filename, line, name = frames[last]
    place = f"{_shown_path(filename, folder)}:{line} in {name}"
    if len(frames) - first == 1:
        return place, ""
    shown = frames[first : last + 1 + _LIBRARY_FRAMES][-_FRAMES:]
    return place, " > ".join(f"{_shown_path(path, folder)}:{line} {name}" for path, line, name in shown)


def _is_of_application(filename: str) -> bool:
    return not filename.startswith(_PACKAGE) and not any(part in filename for part in _LIBRARIES)


def _current_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - a string is enough
    except OSError:  # it was removed
        return ""


def _shown_path(filename: str, folder: str) -> str:
    """Return a path relative to ``folder``, or a library path relative to ``site-packages``."""
    for packages in ("site-packages/", "dist-packages/"):
        if packages in filename:
            return filename.rpartition(packages)[2]
    return filename.removeprefix(folder + os.sep) if folder else filename


@functools.lru_cache(maxsize=1_024)
def _template(text: str, names: tuple[str, ...], described: tuple[str, ...]) -> str:
    """Return the template, followed by the description of an exception and by facts that it does not name."""
    text += "".join(words for name, words in _DESCRIPTION.items() if name in described)
    named = set(_NAMED.findall(text))
    rest = " ".join(f"{name}=%({name})s" for name in names if name not in named)
    missing = named.difference(names)
    for name in missing:  # a fact that is None
        text = text.replace(f"%({name})s", "-")
    return f"{text} [{rest}]" if rest else text


def _safe(value: object) -> object:
    """Return a fact that cannot forge a line. Numbers stay numbers, and containers quote their strings."""
    if type(value) is str and len(value) <= _SHOWN and value.isprintable():  # fast path
        return value
    if isinstance(value, _AS_THEY_ARE):
        return value
    return printable(value, limit=_SHOWN * 2)
