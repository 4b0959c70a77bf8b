"""Decode the history that is stored with the state of a job. Pure.

See docs/decisions/0018.
"""

from typing import Any, NamedTuple

import msgspec

from conquiet.management.jobs.decoding import as_attempts, in_seconds
from conquiet.management.jobs.models import JobAttempt, RelatedMessage
from conquiet.processor.failed_attempts import read_attempts


class RecordedHistory(NamedTuple):
    """Stored history of a job.

    Attributes:
        failed: Its failed attempts, oldest first.
        duration_s: Run time of its last attempt.
        caused_by: The message that caused it.
        caused: Messages that its handler emitted.
    """

    failed: tuple[JobAttempt, ...] = ()
    duration_s: float | None = None
    caused_by: RelatedMessage | None = None
    caused: tuple[RelatedMessage, ...] = ()


def read_recorded(raw: str) -> RecordedHistory:
    """Decode a stored history; empty if another version wrote it."""
    try:
        facts = msgspec.json.decode(raw.encode()) if raw else {}
    except (msgspec.DecodeError, UnicodeEncodeError):
        facts = {}
    if not isinstance(facts, dict):
        return RecordedHistory()
    duration_ms, caused = facts.get("ms"), facts.get("caused")
    return RecordedHistory(
        as_attempts(read_attempts(facts.get("failures"))),
        in_seconds(duration_ms) if isinstance(duration_ms, int) else None,
        _related(facts.get("by")),
        tuple(found for one in caused if (found := _related(one)) is not None) if isinstance(caused, list) else (),
    )


def _related(found: Any) -> RelatedMessage | None:
    if isinstance(found, list) and len(found) == 2 and all(isinstance(one, str) for one in found):  # noqa: PLR2004
        return RelatedMessage(*found)
    return None
