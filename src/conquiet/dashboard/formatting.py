"""Format numbers, rates, durations, times and sizes. Pure."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from conquiet.management.fleet import DelayedCounts

NONE: Final = "\u2013"
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86_400
_KILO: Final = 1024


def number(value: float | None) -> str:
    """Return a number with thin spaces between thousands; a dash for None."""
    if value is None:
        return NONE
    return f"{int(value):,}".replace(",", "\u202f")


def rate(per_s: float | None) -> str:
    """Return a rate per second, with one decimal below 10."""
    if per_s is None:
        return NONE
    if per_s == 0:
        return "0"
    if per_s < 10:  # noqa: PLR2004
        return f"{per_s:.1f}"
    return number(round(per_s))


def duration(seconds: float | None) -> str:
    """Return a time span in its two largest units."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004
    large, small, unit = (_MINUTE, 1, ("min", "s")) if seconds < _HOUR else (_HOUR, _MINUTE, ("h", "min"))
    if seconds >= _DAY:
        large, small, unit = _DAY, _HOUR, ("d", "h")
    whole, rest = int(seconds // large), int(seconds % large // small)
    return f"{whole} {unit[0]} {rest} {unit[1]}" if rest else f"{whole} {unit[0]}"


def clock(ms: float | None) -> str:
    """Return a moment in UTC, to the second."""
    if not ms:
        return NONE
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return NONE


def ago(ms: float | None, now_ms: float) -> str:
    """Return the time since a moment, or until it."""
    if not ms:
        return NONE
    seconds = (now_ms - ms) / 1000
    if abs(seconds) < 1:
        return "now"
    return f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"


def size(count: float | None) -> str:
    """Return a number of bytes with a unit."""
    if count is None:
        return NONE
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < _KILO or unit == "GB":
            break
        value /= _KILO
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"  # noqa: PLR2004


def retries(counts: "DelayedCounts | None", delayed: int) -> str:
    """Return how many delayed messages wait for a further attempt; a dash while it is unknown."""
    if counts is None:
        return number(None if delayed else 0)
    return number(counts.retrying) if counts.is_exact else f"{number(counts.retrying)} of {number(counts.read_count)}"


def first_waits(counts: "DelayedCounts | None", delayed: int) -> str:
    """Return how many delayed messages wait for their first attempt; all of them while that is unknown."""
    return number(delayed if counts is None or not counts.is_exact else max(0, counts.total - counts.retrying))
