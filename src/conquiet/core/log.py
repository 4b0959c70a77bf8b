"""Log lines that carry their facts in the text, for people, and in ``extra``, for machines, with one call.

    logger = FactLogger(__name__)
    logger.warning("stream is kept long by group %(group)s", group=group, stream=stream)

    text     stream is kept long by group billing [stream=orders]
    extra    group="billing", stream="orders"

The template is a constant, so that a log store can group by it. A fact that the template does not name is appended. A
fact that is None or empty is left out. Foreign text (ids, names) is escaped and truncated.

``failure`` logs an exception: its class, the line that raised it and the frames, without any value. The text of an
exception often quotes the message, so it is shown only for conquiet's errors, which quote nothing. A whole traceback,
which ends in that text, is logged only if ``conquiet --debug`` or ``log_tracebacks`` of a worker enables it.

See docs/decisions/0058.
"""

import functools
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, Final

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
_NOTHING: Final[Mapping[str, str]] = {}
_KNOWN: Final = 512
"""Most calls and places of errors that are remembered."""

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]
_Site = tuple["FactLogger", int, str, tuple[str, ...], int, int, int]
"""A call with its facts: logger, level, text, names, how many describe an error, code, instruction."""

_known_records: dict[_Site, tuple[dict[str, Any], CodeType]] = {}
"""A call -> the fields of its records, without any value."""

os.register_at_fork(after_in_child=_known_records.clear)  # a child has another process id and name

_known_places: dict[tuple[object, ...], tuple[dict[str, str], list[CodeType]]] = {}
"""Class and frames of an error -> how they are shown: a handler usually fails at the same place.

A frame is the id of its code and its last instruction: hashes of codes and line numbers are computed at each access.
The code is kept, so that no other code gets its id.
"""

_describers: list[Callable[[BaseException], str | None]] = []

_tracebacks = bool(os.environ.get("CONQUIET_DEBUG"))  # set by --debug before this import, for child processes too


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
            shown = error if tracebacks or _tracebacks else None
            self._log(level, text, facts, describe_error(error), shown)

    def _log(
        self,
        level: int,
        text: str,
        facts: dict[str, object],
        described: Mapping[str, str] = _NOTHING,
        error: BaseException | None = None,
    ) -> None:
        """Log an enabled line. ``described`` has the facts that describe an exception."""
        shown = _safe_facts(facts)
        if described:
            shown.update(described)
        caller = sys._getframe(2)  # noqa: SLF001 - as in logging, but the depth is known
        code = caller.f_code
        exc_info = None if error is None else (type(error), error, error.__traceback__)
        site = (self, level, text, tuple(shown), len(described), id(code), caller.f_lasti)
        known = _known_records.get(site)
        if known is not None and logging.getLogRecordFactory() is logging.LogRecord:
            record = _record_like(known[0], shown, exc_info)
        else:
            template, name, line = _template(text, tuple(shown), tuple(described)), self._logger.name, caller.f_lineno
            record = self._logger.makeRecord(
                name, level, code.co_filename, line, template, (), exc_info, code.co_name, shown
            )
            record.args = shown
            self._remember(site, record, code)
        self._logger.handle(record)

    def _remember(self, site: _Site, record: logging.LogRecord, code: CodeType) -> None:
        """Keep the fields of a record for the next lines of the same call, without any value.

        Not kept: records of the application's factory, and records that name the task (Python 3.12 and later).
        """
        if (
            logging.getLogRecordFactory() is not logging.LogRecord
            or type(self._logger) is not logging.Logger
            or "taskName" in vars(record)
        ):
            return
        if len(_known_records) >= _KNOWN:
            _known_records.clear()
        _known_records[site] = vars(record) | dict.fromkeys(site[3]) | {"args": None, "exc_info": None}, code


def _record_like(known: dict[str, Any], facts: dict[str, object], exc_info: _ExcInfo | None) -> logging.LogRecord:
    """Return a record of the same call with other facts. ``LogRecord()`` would split the path of the file again."""
    record = logging.LogRecord.__new__(logging.LogRecord)
    record.__dict__ = fields = known.copy()
    fields.update(facts)
    fields["args"], fields["exc_info"] = facts, exc_info
    fields["levelname"] = logging.getLevelName(fields["levelno"])
    now = time.time()
    fields["relativeCreated"] += (now - fields["created"]) * 1000
    fields["created"], fields["msecs"] = now, now % 1 * 1000 // 1
    if logging.logThreads:
        thread = threading.current_thread()
        fields["thread"], fields["threadName"] = thread.ident, thread.name
    return record


def describe_error(error: BaseException | None) -> Mapping[str, str]:
    """Return the facts of an exception that may be logged: ``error``, ``place``, ``frames``, ``reason``."""
    if error is None:
        return _NOTHING
    key: list[object] = [type(error)]
    trace = error.__traceback__
    while trace is not None:
        key.append(id(trace.tb_frame.f_code))
        key.append(trace.tb_lasti)
        trace = trace.tb_next
    at = tuple(key)
    if (known := _known_places.get(at)) is None:
        if len(_known_places) >= _KNOWN:
            _known_places.clear()
        known = _known_places[at] = _describe_place(error)
    if error.__cause__ is None and not _describers and not isinstance(error, ConquietError):
        return known[0]  # most errors: ``reason_of`` would return ""
    reason = reason_of(error)
    return known[0] | {"reason": reason} if reason else known[0]


def reason_of(error: BaseException) -> str:
    """Return the text of a conquiet error or of a conquiet error among its causes, else a describer's text or ""."""
    current: BaseException | None = error
    for _ in range(_CAUSES):
        if isinstance(current, ConquietError):
            try:
                return printable(scrub_credentials(str(current)), limit=_SHOWN)
            except Exception:  # noqa: BLE001 - the __str__ of a user's subclass may fail
                return ""
        if current is None or current.__cause__ is None:
            break
        current = current.__cause__
    for describe in _describers:
        if said := describe(error):
            return str(_safe(said))
    return ""


def _describe_place(error: BaseException) -> tuple[dict[str, str], list[CodeType]]:
    """Return the class of an error, the last frame of the application, and its frames with the first of the library.

    Frames before the application's first frame (pool thread, conquiet's adapters) are the same for every message and
    are omitted. If there is no frame of the application, all are shown. Paths are relative to the current folder.
    """
    # traceback.extract_tb would read the source files.
    walked = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    frames = [(code.co_filename, line, code.co_name) for code, line in walked]
    described = {"error": type(error).__name__}
    if frames:
        folder = _current_folder()
        own = [at for at, (filename, _, _) in enumerate(frames) if _is_of_application(filename)]
        first, last = (own[0], own[-1]) if own else (0, len(frames) - 1)
        filename, line, name = frames[last]
        described["place"] = f"{_shown_path(filename, folder)}:{line} in {name}"
        if len(frames) - first > 1:
            shown = frames[first : last + 1 + _LIBRARY_FRAMES][-_FRAMES:]
            described["frames"] = " > ".join(f"{_shown_path(path, folder)}:{line} {name}" for path, line, name in shown)
    return {name: str(_safe(value)) for name, value in described.items()}, [code for code, _ in walked]


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


def _safe_facts(facts: dict[str, object]) -> dict[str, object]:
    """Return facts that cannot forge a line, without None and empty texts; ``facts`` itself if it needs no change."""
    for value in facts.values():
        if type(value) is str:
            if not value or len(value) > _SHOWN or not value.isprintable():
                break
        elif type(value) not in _NUMBERS:
            break
    else:
        return facts
    return {name: _safe(value) for name, value in facts.items() if value is not None and value != ""}


def _safe(value: object) -> object:
    """Return a fact that cannot forge a line. Numbers stay numbers, and containers quote their strings."""
    if type(value) is str and len(value) <= _SHOWN and value.isprintable():  # fast path
        return value
    if isinstance(value, _AS_THEY_ARE):
        return value
    return printable(value, limit=_SHOWN * 2)
