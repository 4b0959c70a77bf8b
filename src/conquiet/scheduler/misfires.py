"""Decide which ticks to fire now and which were missed. Pure.

        last decided                                                    now
    ────────┼────x─────x─────x─────x─────x──────────┬────────x────────x──┼────x────
                 └───────── late: by policy ────────┘        punctual    │    not yet
                                             now - misfire_grace_s

A tick is late if its due time is past by more than ``misfire_grace_s``. Punctual ticks always fire: a schedule of
one second loses no ticks to an interruption of two. Jitter is not lateness: neither the jitter of a tick nor the
jitter of the ticks before it, which it must wait for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from conquiet.scheduler.entries import FIRE_LIMIT, ScheduleEntry, When


@dataclass(frozen=True, slots=True)
class FirePlan:
    """The ticks of one entry to fire now.

    Attributes:
        fire: Due times to fire, oldest first.
        missed: How many late ticks are dropped.
        decided: Every tick up to this due time is fired or missed once the plan is carried out. Unchanged if there
            is nothing to do.
        wake_at: When the next tick can be fired after this plan; None if there is none.
    """

    fire: tuple[int, ...]
    missed: int
    decided: int
    wake_at: int | None


def plan_fires(entry: ScheduleEntry, decided: int, now: int) -> FirePlan:
    """Decide about every tick of ``entry`` after ``decided`` that can be fired at ``now`` (both ms)."""
    upcoming = entry.when.next_after(decided)
    if upcoming is None or entry.fire_at(upcoming) > now:
        return FirePlan((), 0, decided, None if upcoming is None else entry.fire_at(upcoming))

    # Before this point every tick is late with any jitter: they are counted, not walked one by one.
    long_past = max(decided, now - entry.misfire_grace_ms - entry.jitter_ms - 1)
    late_count = entry.when.count_between(decided, long_past)
    ready, upcoming = _ready(entry, long_past, now)
    late_ready = _late(entry, ready, decided, now)
    punctual = ready[len(late_ready) :]

    wanted = _late_wanted(entry, has_punctual=bool(punctual))
    late = late_ready[-wanted:] if wanted else []
    if len(late) < wanted and late_count:
        late = newest(entry.when, decided, long_past, wanted - len(late)) + late
    missed = late_count + len(late_ready) - len(late)

    fire = sorted(late + punctual)
    if len(fire) > FIRE_LIMIT:
        # The rest is punctual, because late ones are at most FIRE_LIMIT and come first: the next plan fires it.
        fire = fire[:FIRE_LIMIT]
        return FirePlan(tuple(fire), missed, fire[-1], now)
    newest_decided = [decided, *(ready or newest(entry.when, decided, long_past, 1))][-1]
    return FirePlan(tuple(fire), missed, newest_decided, None if upcoming is None else entry.fire_at(upcoming))


def last_passed(entry: ScheduleEntry, decided: int, now: int) -> int:
    """Return the due time of the newest tick after ``decided`` that could be fired by ``now``, or ``decided``.

    A tick that is due but delayed by its jitter is not passed yet.
    """
    long_past = max(decided, now - entry.jitter_ms - 1)
    ready, _ = _ready(entry, long_past, now)
    return [decided, *(ready or newest(entry.when, decided, long_past, 1))][-1]


def newest(when: When, after: int, until: int, count: int) -> list[int]:
    """Return the newest ``count`` ticks in ``(after, until]``, oldest first.

    It searches back in growing steps, so a year's outage of a schedule of seconds costs no more than a minute's.
    """
    span = 60_000
    while True:
        start = max(after, until - span)
        found = list(_between(when, start, until))
        if len(found) >= count or start == after:
            return found[-count:]
        span *= 4


def _ready(entry: ScheduleEntry, after: int, now: int) -> tuple[list[int], int | None]:
    """Return the ticks after ``after`` that can be fired, and the first that cannot.

    Ticks are fired in the order of their due times, so a delayed tick delays the ticks after it.
    """
    ready: list[int] = []
    tick = entry.when.next_after(after)
    while tick is not None and entry.fire_at(tick) <= now:
        ready.append(tick)
        tick = entry.when.next_after(tick)
    return ready, tick


def _late(entry: ScheduleEntry, ready: list[int], decided: int, now: int) -> list[int]:
    """Return the late ticks among the ready ones: the first ones, up to a tick that jitter delayed until now.

    Ticks after such a tick could not be fired before it, and are as punctual as it is.
    """
    limit = now - entry.misfire_grace_ms
    late = list(takewhile(lambda due: entry.fire_at(due) < limit, ready))
    # It may be decided already, if one step could not fire all that waited for it.
    before = _between(entry.when, limit - entry.jitter_ms - 1, decided) if late else iter(())
    return [] if any(limit <= entry.fire_at(due) <= now for due in before) else late


def _between(when: When, after: int, until: int) -> Iterator[int]:
    """Yield the ticks in ``(after, until]``."""
    tick = when.next_after(after)
    while tick is not None and tick <= until:
        yield tick
        tick = when.next_after(tick)


def _late_wanted(entry: ScheduleEntry, *, has_punctual: bool) -> int:
    match entry.catch_up:
        case "skip":
            return 0
        case "one":
            # "Run once for everything missed": a punctual run is that run.
            return 0 if has_punctual else 1
        case "all":
            return entry.catch_up_limit
