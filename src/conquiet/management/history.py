"""Read the history of workers: throughput, failures, latency, and the starts of new versions.

Workers write the counters when they renew their liveness key (``redis_transport.worker_reports``): for each minute of
the last 8 hours, and for each quarter of an hour of the last 14 days.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from conquiet.management.redis_admin import RedisAdmin, display_name, utf8_name
from conquiet.redis_transport.replies import as_mapping, text
from conquiet.redis_transport.worker_reports import (
    BUCKETS_S,
    QUARTERS_PER_DAY,
    deploys_key,
    history_base,
    minutes_key,
    quarters_key,
)

if TYPE_CHECKING:
    from conquiet.redis_transport.commands import Word

_MINUTE_S: Final = 60
_QUARTER_S: Final = 900
_LONGEST_S: Final = 20.0
"""Assumed upper bound of the last bucket, which has none."""


class HistoryRange(Enum):
    """Time span of a history."""

    HOUR = "hour"
    DAY = "day"
    WEEKS = "weeks"


_POINTS: Final = {HistoryRange.HOUR: 60, HistoryRange.DAY: 96, HistoryRange.WEEKS: 14 * 96}
_STEP_S: Final = {HistoryRange.HOUR: _MINUTE_S, HistoryRange.DAY: _QUARTER_S, HistoryRange.WEEKS: _QUARTER_S}
_MERGED: Final = {HistoryRange.HOUR: 1, HistoryRange.DAY: 1, HistoryRange.WEEKS: 12}
"""Quarters of an hour in one point: two weeks are shown in steps of three hours."""


@dataclass(slots=True)
class Point:
    """One step of a history.

    Attributes:
        at_s: Its beginning, in seconds since the epoch.
        ok: Successful attempts; failed: failed attempts.
        handling: Handlers in each bucket of ``BUCKETS_S`` by run time; wait: by time from enqueue to start.
    """

    at_s: int
    ok: int = 0
    failed: int = 0
    handling: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    wait: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))


@dataclass(frozen=True, slots=True)
class Deploy:
    """The first start of a worker of a version, in seconds since the epoch."""

    version: str
    at_s: int


@dataclass(frozen=True, slots=True)
class History:
    """The history of a stream: points of ``step_s`` seconds, oldest first, and deploys within them."""

    span: HistoryRange
    step_s: int
    points: tuple[Point, ...]
    deploys: tuple[Deploy, ...]


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the quantile ``share`` of the values, interpolated within its bucket; None without values. Pure."""
    total = sum(counts)
    if not total:
        return None
    wanted, seen = total * share, 0
    for at, number in enumerate(counts):
        if number and seen + number >= wanted:
            low = BUCKETS_S[at - 1] if at else 0.0
            high = BUCKETS_S[at] if at < len(BUCKETS_S) else _LONGEST_S
            return low + (high - low) * (wanted - seen) / number
        seen += number
    return _LONGEST_S


def read_history(server: RedisAdmin, stream: bytes, groups: Iterable[bytes], span: HistoryRange) -> History:
    """Return the summed history of a stream's groups up to now. Reads at most 15 hashes for each group."""
    now_s = server.now_ms() // 1000
    step_s, count = _STEP_S[span], _POINTS[span]
    last = now_s // step_s
    numbers = range(last - count + 1, last + 1)
    merged = _MERGED[span]
    points = [Point(number * step_s) for number in numbers[::merged]]
    key = utf8_name(stream)
    if key is None:
        return History(span, step_s * merged, tuple(points), ())
    per_hash = _MINUTE_S if span is HistoryRange.HOUR else QUARTERS_PER_DAY
    hashes = range(numbers[0] // per_hash, last // per_hash + 1)
    name_of = minutes_key if span is HistoryRange.HOUR else quarters_key
    commands: list[tuple[Word, ...]] = [
        ("HGETALL", name_of(base, one)) for base in _bases(stream, groups) for one in hashes
    ]
    commands.append(("ZRANGE", deploys_key(key), 0, -1, "WITHSCORES"))
    *replies, marks = server.pipeline(commands, stream=display_name(stream))
    for at, reply in enumerate(replies):
        first = hashes[at % len(hashes)] * per_hash
        for raw_field, raw_number in as_mapping(reply).items():
            offset, _, counter = text(raw_field).partition(":")
            if offset.isdecimal() and first + int(offset) in numbers:
                _count(points[(first + int(offset) - numbers[0]) // merged], counter, int(raw_number))
    deploys = tuple(
        Deploy(display_name(version), int(float(text(score))))
        for version, score in zip(marks[::2], marks[1::2], strict=True)
        if int(float(text(score))) >= numbers[0] * step_s
    )
    return History(span, step_s * merged, tuple(points), deploys)


def read_sparklines(server: RedisAdmin, streams: Sequence[tuple[bytes, Sequence[bytes]]]) -> dict[bytes, list[int]]:
    """Return attempts per minute of each stream in the last hour, oldest first. Two small reads for each group."""
    last = server.now_ms() // 60_000
    minutes = range(last - 59, last + 1)
    hours = {hour: [one for one in minutes if one // 60 == hour] for hour in sorted({one // 60 for one in minutes})}
    commands: list[tuple[bytes, int, tuple[Word, ...]]] = []
    for stream, groups in streams:
        for base in _bases(stream, groups):
            for hour, those in hours.items():
                fields = [f"{minute % 60}:{what}" for minute in those for what in ("ok", "failed")]
                commands.append((stream, hour, ("HMGET", minutes_key(base, hour), *fields)))
    found: dict[bytes, dict[int, int]] = {stream: dict.fromkeys(minutes, 0) for stream, _ in streams}
    # One round trip; in a cluster one for each stream.
    for place, members in itertools.groupby(commands, key=lambda one: one[0] if server.is_cluster else b""):
        batch = list(members)
        replies = server.pipeline([words for _, _, words in batch], stream=display_name(place))
        for (stream, hour, _), reply in zip(batch, replies, strict=True):
            for minute, ok, failed in zip(hours[hour], reply[::2], reply[1::2], strict=True):
                found[stream][minute] += int(ok or 0) + int(failed or 0)
    return {stream: list(points.values()) for stream, points in found.items()}


def _bases(stream: bytes, groups: Iterable[bytes]) -> list[str]:
    """Return the prefixes of the counters of these groups. Names of conquiet's workers are UTF-8; others have none."""
    key = utf8_name(stream)
    names = [utf8_name(group) for group in groups]
    return [] if key is None else [history_base(key, name) for name in names if name is not None]


def _count(point: Point, counter: str, number: int) -> None:
    if counter == "ok":
        point.ok += number
    elif counter == "failed":
        point.failed += number
    elif counter[1:].isdecimal() and int(counter[1:]) <= len(BUCKETS_S):
        (point.handling if counter[0] == "h" else point.wait)[int(counter[1:])] += number
