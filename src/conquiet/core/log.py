"""Log lines that carry their facts twice: in the text, for people, and in ``extra``, for machines. One call gives both.

    logger = FactLogger(__name__)
    logger.warning("stream is kept long by group %(group)s", group=group, stream=stream)

    text     stream is kept long by group billing [stream=orders]
    extra    group="billing", stream="orders"

The template is a constant, so that a log store can group by it. A fact that the template does not name is appended. A
fact that is None or empty is left out. Text that came from elsewhere (ids, names) is escaped and truncated.

``failure`` logs an exception: its class, the line that raised it and the frames, without any value. The text of an
exception often quotes the message, so it is shown only for conquiet's own errors, which quote nothing. A whole
traceback, which ends in that text, is logged only where ``show_tracebacks`` or ``log_tracebacks`` of a worker ask for
it.

See docs/decisions/0058.
"""

import functools
import logging
import os
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
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

_describers: list[Callable[[BaseException], str | None]] = []

_tracebacks = bool(os.environ.get("CONQUIET_DEBUG"))  # set by --debug, for child processes too


def show_tracebacks(*, shown: bool = True) -> None:
    """Log whole tracebacks from now on, in this process. They hold exception texts, which may quote messages."""
    global _tracebacks  # noqa: PLW0603 - one switch for the process, as logging itself is
    _tracebacks = shown


def add_describer(describe: Callable[[BaseException], str | None]) -> None:
    """Use a function that describes errors of a library, such as a driver, without any value; None for others."""
    if describe not in _describers:
        _describers.append(describe)


class FactLogger:
    """A logger whose calls take facts as keywords.

    Args:
        name: The module's name.
    """

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, text: str, /, **facts: object) -> None:
        """Log at DEBUG."""
        self._log(logging.DEBUG, text, facts)

    def info(self, text: str, /, **facts: object) -> None:
        """Log at INFO."""
        self._log(logging.INFO, text, facts)

    def warning(self, text: str, /, **facts: object) -> None:
        """Log at WARNING."""
        self._log(logging.WARNING, text, facts)

    def error(self, text: str, /, **facts: object) -> None:
        """Log at ERROR."""
        self._log(logging.ERROR, text, facts)

    def critical(self, text: str, /, **facts: object) -> None:
        """Log at CRITICAL."""
        self._log(logging.CRITICAL, text, facts)

    def failure(
        self, level: int, text: str, error: BaseException | None, /, *, tracebacks: object = False, **facts: object
    ) -> None:
        """Log an exception: class, line and frames, the text only of an error of conquiet's own.

        Args:
            level: Level of the line.
            text: What failed.
            error: The exception; None logs the text and the facts alone.
            tracebacks: Add the whole traceback.
            **facts: What is known besides.
        """
        if not self._logger.isEnabledFor(level):
            return
        described = describe_error(error)
        for name, words in (("error", ": %(error)s"), ("place", " at %(place)s"), ("reason", ": %(reason)s")):
            if described.get(name):
                text += words
        shown = error if error is not None and (tracebacks or _tracebacks) else None
        self._log(level, text, facts | described, shown)

    def _log(self, level: int, text: str, facts: dict[str, object], error: BaseException | None = None) -> None:
        if not self._logger.isEnabledFor(level):
            return
        shown = {name: _safe(value) for name, value in facts.items() if value is not None and value != ""}
        exc_info = None if error is None else (type(error), error, error.__traceback__)
        # 3: the caller of warning() and its like. Without facts no argument at all: an empty mapping is no mapping to
        # logging.
        arguments = (shown,) if shown else ()
        self._logger.log(level, _template(text, tuple(shown)), *arguments, extra=shown, exc_info=exc_info, stacklevel=3)


def describe_error(error: BaseException | None) -> dict[str, str]:
    """Return what a log may show of an exception: ``error``, ``place``, ``frames``, ``reason`` of our own errors."""
    if error is None:
        return {}
    frames = list(_frames_of(error))
    own = [frame for frame in frames if _is_of_application(frame.filename)]
    described = {"error": type(error).__name__}
    if frames:
        last = (own or frames)[-1]
        described["place"] = f"{_shown_path(last.filename)}:{last.lineno} in {last.name}"
    if reason := reason_of(error):
        described["reason"] = reason
    if len(frames) > 1:
        described["frames"] = " > ".join(
            f"{_shown_path(frame.filename)}:{frame.lineno} {frame.name}" for frame in _most_relevant(frames)
        )
    return described


def _most_relevant(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the last frames of the application, and the first few of the library that it called."""
    last = max((at for at, frame in enumerate(frames) if _is_of_application(frame.filename)), default=len(frames) - 1)
    return frames[: last + 1 + _LIBRARY_FRAMES][-_FRAMES:]


def reason_of(error: BaseException) -> str:
    """Return the text of an error of conquiet's own, or of one that caused it, or what a describer says; else empty."""
    current: BaseException | None = error
    for _ in range(_CAUSES):
        if isinstance(current, ConquietError):
            try:
                return printable(scrub_credentials(str(current)), limit=_SHOWN)
            except Exception:  # noqa: BLE001 - a subclass of the user's with a __str__ that fails
                return ""
        if current is None:
            break
        current = current.__cause__
    return next((said for describe in _describers if (said := describe(error))), "")


def _frames_of(error: BaseException) -> Iterator[traceback.FrameSummary]:
    """Yield the frames from the first one of the application on; all of them if there is none.

    What is before it (a thread of the pool, our own adapters) is the same for every message.
    """
    frames = traceback.extract_tb(error.__traceback__)
    start = next((at for at, frame in enumerate(frames) if _is_of_application(frame.filename)), 0)
    yield from frames[start:]


def _is_of_application(filename: str) -> bool:
    return not filename.startswith(_PACKAGE) and not any(part in filename for part in _LIBRARIES)


def _shown_path(filename: str) -> str:
    """Return a path below the current folder as relative to it, one of a library from its package on."""
    for folder in ("site-packages/", "dist-packages/"):
        if folder in filename:
            return filename.rpartition(folder)[2]
    path = Path(filename)
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return filename


@functools.lru_cache(maxsize=1_024)
def _template(text: str, names: tuple[str, ...]) -> str:
    """Return the template with the facts that it does not name appended."""
    named = set(_NAMED.findall(text))
    rest = " ".join(f"{name}=%({name})s" for name in names if name not in named)
    missing = named.difference(names)
    for name in missing:  # a fact that is None
        text = text.replace(f"%({name})s", "-")
    return f"{text} [{rest}]" if rest else text


def _safe(value: object) -> object:
    """Return a fact that cannot forge a line. Numbers stay numbers, and containers show their strings quoted."""
    if isinstance(value, int | float | dict | list | tuple):
        return value
    return printable(value, limit=_SHOWN * 2)
