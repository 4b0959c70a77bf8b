"""Encode an entry for Redis and decode it. Pure.

Version 1, a JSON object: ``v name event stream data catch_up catch_up_limit grace_ms jitter_ms when``, where
``when`` is one of ``{"cron": …, "tz": …}``, ``{"every_ms": …, "anchor_ms": …}``, ``{"once_ms": …}``. Readers
ignore unknown keys; ``v`` rises only if an old reader would fire the wrong thing.
"""

import hashlib
from typing import Any, assert_never

from conquiet.core.json_codec import CodecError, canonical, decode_payload, encode_payload
from conquiet.errors import ConfigurationError
from conquiet.scheduler.cron import Cron
from conquiet.scheduler.entries import MAX_DATA_BYTES, Every, Once, ScheduleEntry, When, from_ms

VERSION = 1
_LARGEST = MAX_DATA_BYTES + 64 * 1024
_MS = 1_000


class EntryCodecError(ValueError):
    """A stored entry cannot be decoded: it is of a newer release, or of other code. Carries no value of it."""


def encode(entry: ScheduleEntry) -> bytes:
    """Return the entry in its stored form."""
    return encode_payload(_as_object(entry), max_bytes=_LARGEST)


def decode(text: bytes) -> ScheduleEntry:
    """Return the stored entry.

    Raises:
        EntryCodecError: It cannot be decoded, so it must not be fired.
    """
    try:
        stored = decode_payload(text, max_bytes=_LARGEST)
        if stored.get("v") != VERSION:
            raise EntryCodecError("the stored entry has a version that this release does not know")
        return ScheduleEntry(
            stored["name"],
            _when(stored["when"]),
            stored["event"],
            stored["stream"],
            stored["data"],
            catch_up=stored["catch_up"],
            catch_up_limit=stored["catch_up_limit"],
            misfire_grace_s=stored["grace_ms"] / _MS,
            jitter_s=stored["jitter_ms"] / _MS,
        )
    except (CodecError, ConfigurationError, KeyError, TypeError, OverflowError, OSError) as error:
        raise EntryCodecError("the stored entry is not one of this scheduler's") from error


def revision(entry: ScheduleEntry) -> str:
    """Return a digest of the whole entry."""
    return _digest(_as_object(entry))


def times_digest(entry: ScheduleEntry) -> str:
    """Return a digest of the entry's times."""
    return _digest(_as_object(entry)["when"])


def _digest(value: dict[str, Any]) -> str:
    return hashlib.blake2b(canonical(value), digest_size=12).hexdigest()


def _as_object(entry: ScheduleEntry) -> dict[str, Any]:
    return {
        "v": VERSION,
        "name": entry.name,
        "event": entry.event,
        "stream": entry.stream,
        "when": _when_as_object(entry.when),
        "catch_up": entry.catch_up,
        "catch_up_limit": entry.catch_up_limit,
        "grace_ms": entry.misfire_grace_ms,
        "jitter_ms": entry.jitter_ms,
        "data": dict(entry.data),
    }


def _when_as_object(when: When) -> dict[str, Any]:
    match when:
        case Cron():
            return {"cron": when.expression, "tz": when.tz}
        case Every():
            return {"every_ms": when.every_ms, "anchor_ms": when.anchor_ms}
        case Once():
            return {"once_ms": when.at_ms}
        case _:
            assert_never(when)


def _when(stored: dict[str, Any]) -> When:
    if "cron" in stored:
        return Cron(stored["cron"], stored["tz"])
    if "every_ms" in stored:
        return Every(stored["every_ms"] / _MS, anchor=from_ms(stored["anchor_ms"]))
    return Once(from_ms(stored["once_ms"]))
