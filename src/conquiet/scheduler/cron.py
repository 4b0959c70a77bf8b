"""Compute when a cron expression is due, correctly across clock changes. Pure. See docs/decisions/0019.

``cronsim`` finds the matching wall-clock times; this module alone decides which instants they are. It is
never given a time zone: it steps by whole hours and skips ticks where clocks move by half an hour (Lord
Howe Island), and its six-field expressions lose a nightly run in spring. The two rules are Debian cron's:

    fixed        neither minute nor hour starts with "*"         "30 2 * * *"
                 Each wall-clock time is due once. A time that the clock jumps over is due at the end of the
                 jump; a time that the clock shows twice is due the first time only.
    recurring    minute or hour starts with "*"                  "*/15 * * * *"
                 Due whenever the clock shows it: never in a jump forward, twice in an hour that repeats.
"""

from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from conquiet.core.redaction import printable
from conquiet.core.validation import require_text
from conquiet.errors import ConfigurationError

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_FIELDS = (5, 6)
_LONGEST = 256
_SECOND_MS = 1_000
# No zone has ever moved its clocks back by more than a day.
_LONGEST_FOLD_S = 24 * 3600
_DAY_S = 24 * 3600
_ONE_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a named time zone.

    Attributes:
        expression: Five fields (minute, hour, day of month, month, day of week), six with seconds in front,
            or a nickname such as ``@daily``.
        tz: IANA name of the time zone.
    """

    expression: str
    tz: str = "UTC"
    _pattern: str = field(init=False, repr=False, compare=False)
    _fixed: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pattern = _pattern_of(self.expression)
        _zone(self.tz)
        hour, minute = pattern.split()[-4], pattern.split()[-5]
        object.__setattr__(self, "_pattern", pattern)
        object.__setattr__(self, "_fixed", not (hour.startswith("*") or minute.startswith("*")))
        if _next_wall(pattern, datetime(2000, 1, 1)) is None:  # noqa: DTZ001 - wall-clock time
            raise ConfigurationError(
                f"cron expression {printable(self.expression)!r} is never due: no such date exists"
            )

    def next_after(self, instant_ms: int) -> int | None:
        """Return the first instant (ms since the epoch) after the given one, or None if there is none in 50 years."""
        zone = _zone(self.tz)
        after_s = instant_ms // _SECOND_MS  # due times are whole seconds: rounding down loses none
        found = self._next_fixed(after_s, zone) if self._fixed else self._next_recurring(after_s, zone)
        return None if found is None else found * _SECOND_MS

    def count_between(self, after_ms: int, until_ms: int) -> int:
        """Return how many ticks lie in ``(after_ms, until_ms]``.

        They are counted by days and not walked: a year of a schedule of seconds takes 12 ms, so that the event loop is
        not blocked.
        """
        zone = _zone(self.tz)
        start, end = after_ms // _SECOND_MS + 1, until_ms // _SECOND_MS + 1
        count = 0
        while start < end:
            count += int(self._fixed and self._fires_after_jump(start, zone))
            stop = _next_change(start, end, zone)
            new = max(start, _shown_until(start, zone)) if self._fixed else start
            if new < stop:
                wall = _wall(new, zone)
                count += _count_walls(self._pattern, wall, wall + timedelta(seconds=stop - new))
            start = stop
        return count

    def _fires_after_jump(self, instant_s: int, zone: ZoneInfo) -> bool:
        """Return True if the clock has just jumped over a due time, and the time it shows now is not due itself."""
        expected, shown = _wall(instant_s - 1, zone) + _ONE_SECOND, _wall(instant_s, zone)
        if shown <= expected or _count_walls(self._pattern, shown, shown + _ONE_SECOND):
            return False
        following = _next_wall(self._pattern, expected - _ONE_SECOND)
        return following is not None and following < shown

    def _next_fixed(self, after_s: int, zone: ZoneInfo) -> int | None:
        # The instant never falls while the wall clock rises, so the first one past ``after_s`` is the next.
        wall = _next_wall(self._pattern, _wall(after_s, zone))
        while wall is not None:
            instant = _first_instant(wall, zone)
            if instant > after_s:
                return instant
            wall = _next_wall(self._pattern, wall)  # it was due before, in the first turn of a repeated hour
        return None

    def _next_recurring(self, after_s: int, zone: ZoneInfo) -> int | None:
        found: int | None = None
        wall = _next_wall(self._pattern, _wall(after_s, zone))
        while wall is not None:
            found = min((instant for instant in _real_instants(wall, zone) if instant > after_s), default=None)
            if found is not None:
                break
            wall = _next_wall(self._pattern, wall)  # the clock jumps over it
        # The search only goes forward, so it does not see that the clock is about to show earlier times again.
        if (turn := _turned_back_at(after_s, zone)) is not None:
            again = _next_wall(self._pattern, _wall(turn, zone) - timedelta(seconds=1))
            if again is not None:
                repeated = turn + int((again - _wall(turn, zone)).total_seconds())
                if _wall(repeated, zone) == again and (found is None or repeated < found):
                    found = repeated
        return found


def _pattern_of(expression: str) -> str:
    require_text("cron expression", expression)
    shown = printable(expression)
    if len(expression) > _LONGEST:
        raise ConfigurationError(f"cron expression is longer than {_LONGEST} characters")
    if expression.startswith("@"):
        pattern = NICKNAMES.get(expression.lower())
        if pattern is None:
            raise ConfigurationError(f"cron nickname {shown!r} is unknown; there are {', '.join(NICKNAMES)}")
        return pattern
    if len(expression.split()) not in _FIELDS:
        raise ConfigurationError(
            f"cron expression {shown!r} must have 5 fields (minute hour day month weekday), or 6 with seconds in front"
        )
    try:
        _parsed(expression)
    except CronSimError as error:
        raise ConfigurationError(f"cron expression {shown!r} is not valid: {error}") from error
    except (AssertionError, TypeError, ValueError) as error:
        # cronsim raises these for some invalid expressions.
        raise ConfigurationError(f"cron expression {shown!r} is not valid") from error
    return expression


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    require_text("tz", name)
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:  # missing; a folder; a path out of the data
        raise ConfigurationError(
            f"time zone {printable(name)!r} is unknown; use an IANA name such as 'Europe/Berlin' "
            "(a machine without zone data needs the package tzdata)"
        ) from error


@lru_cache(maxsize=1024)
def _parsed(pattern: str) -> CronSim:
    return CronSim(pattern, datetime(2000, 1, 1))  # noqa: DTZ001 - wall-clock time


def _next_wall(pattern: str, wall: datetime) -> datetime | None:
    """Return the next matching wall-clock time after ``wall``, both without a zone."""
    walk = copy(_parsed(pattern))  # a copy: the iterator moves, and parsing costs more than iterating
    walk.dt = wall
    try:
        return next(walk, None)
    except (OverflowError, ValueError):  # past the year 9999
        return None


def _count_walls(pattern: str, start: datetime, end: datetime) -> int:
    """Return how many wall-clock times in ``[start, end)`` match. On each day that matches they are the same."""
    count = 0
    wall = _next_wall(pattern, start - _ONE_SECOND)
    while wall is not None and wall < end:
        midnight = wall.replace(hour=0, minute=0, second=0)
        until_s, from_s = ((moment - midnight).total_seconds() for moment in (end, start))
        count += _times_before(pattern, int(min(until_s, _DAY_S))) - _times_before(pattern, int(max(from_s, 0)))
        wall = _next_wall(pattern, midnight + timedelta(seconds=_DAY_S - 1))
    return count


def _times_before(pattern: str, second_of_day: int) -> int:
    """Return how many times of a matching day come before this second of the day."""
    times = _parsed(pattern)
    hour, minute, second = second_of_day // 3600, second_of_day // 60 % 60, second_of_day % 60
    count = sum(one < hour for one in times.hours) * len(times.minutes) * len(times.seconds)
    if hour in times.hours:
        count += sum(one < minute for one in times.minutes) * len(times.seconds)
        if minute in times.minutes:
            count += sum(one < second for one in times.seconds)
    return count


def _wall(instant_s: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(instant_s, zone).replace(tzinfo=None, fold=0)


def _real_instants(wall: datetime, zone: ZoneInfo) -> list[int]:
    """Return every instant at which the clocks show ``wall``: none, one or two."""
    guesses = {int(wall.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1)}
    return sorted(guess for guess in guesses if _wall(guess, zone) == wall)


def _first_instant(wall: datetime, zone: ZoneInfo) -> int:
    """Return the first instant at which the clocks show ``wall`` or, if they jump over it, a later time."""
    real = _real_instants(wall, zone)
    if real:
        return real[0]
    # In a gap fold=1 counts with the offset after the jump and lands before it; fold=0 the other way round.
    before = int(wall.replace(tzinfo=zone, fold=1).timestamp())
    after = int(wall.replace(tzinfo=zone, fold=0).timestamp())
    return _change_between(before, after, zone)


def _turned_back_at(instant_s: int, zone: ZoneInfo) -> int | None:
    """Return when the clocks go back within the next day, or None."""
    later = instant_s + _LONGEST_FOLD_S
    if _offset(later, zone) >= _offset(instant_s, zone):
        return None
    return _change_between(instant_s, later, zone)


def _next_change(start_s: int, end_s: int, zone: ZoneInfo) -> int:
    """Return the first instant after ``start_s`` with another offset, or ``end_s`` if that comes first."""
    offset = _offset(start_s, zone)
    for day in range(start_s, end_s, _DAY_S):
        later = min(day + _DAY_S, end_s)
        if _offset(later, zone) != offset:
            return _change_between(day, later, zone)
    return end_s


def _shown_until(instant_s: int, zone: ZoneInfo) -> int:
    """Return until when the clock shows times that it has shown before; ``instant_s`` if it does not."""
    wall = _wall(instant_s, zone)
    first = _first_instant(wall, zone)
    if first == instant_s:
        return instant_s
    turn = _change_between(first, instant_s, zone)
    return turn + int((_wall(turn - 1, zone) + _ONE_SECOND - _wall(turn, zone)).total_seconds())


def _change_between(before_s: int, after_s: int, zone: ZoneInfo) -> int:
    """Return the first second with another offset than ``before_s``; there is one change in between."""
    old = _offset(before_s, zone)
    while after_s - before_s > 1:
        middle = (before_s + after_s) // 2
        if _offset(middle, zone) == old:
            before_s = middle
        else:
            after_s = middle
    return after_s


def _offset(instant_s: int, zone: ZoneInfo) -> timedelta:
    offset = datetime.fromtimestamp(instant_s, UTC).astimezone(zone).utcoffset()
    assert offset is not None  # noqa: S101 - an aware datetime has one
    return offset
