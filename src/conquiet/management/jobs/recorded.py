"""The story that is recorded with the state of a job, if states are kept. Pure.

See docs/decisions/0071.
"""

from typing import Any, NamedTuple

import msgspec

from conquiet.management.jobs.decoding import as_attempts
from conquiet.management.jobs.models import JobAttempt, RelatedMessage
from conquiet.processor.attempts import read_attempts


class RecordedStory(NamedTuple):
    """How a job came to its state.

    Attributes:
        failed: Its failed attempts, oldest first.
        duration_ms: How long its last attempt ran.
        caused_by: The message whose handler emitted it.
        caused: Messages that its handler emitted.
    """

    failed: tuple[JobAttempt, ...] = ()
    duration_ms: int | None = None
    caused_by: RelatedMessage | None = None
    caused: tuple[RelatedMessage, ...] = ()


def read_story(raw: str) -> RecordedStory:
    """Return what is recorded; nothing if it is of another release."""
    try:
        facts = msgspec.json.decode(raw.encode()) if raw else {}
    except (msgspec.DecodeError, UnicodeEncodeError):
        facts = {}
    if not isinstance(facts, dict):
        return RecordedStory()
    duration_ms, caused = facts.get("ms"), facts.get("caused")
    return RecordedStory(
        as_attempts(read_attempts(facts.get("failures"))),
        duration_ms if isinstance(duration_ms, int) else None,
        _related(facts.get("by")),
        tuple(found for one in caused if (found := _related(one)) is not None) if isinstance(caused, list) else (),
    )


def _related(found: Any) -> RelatedMessage | None:
    if isinstance(found, list) and len(found) == 2 and all(isinstance(one, str) for one in found):  # noqa: PLR2004
        return RelatedMessage(*found)
    return None
