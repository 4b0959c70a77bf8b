"""Write and read the headers of a message in ``<queue>.dead``. The consumer writes them, a replay reads them. Pure.

``x-conquiet-queue`` is used only if its name plus ``.dead`` is the name of the dead-letter queue. Any publisher can
write headers, and a publisher must not choose the target of a replay.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from conquiet.rabbit.death_headers import NOT_SENT_AGAIN
from conquiet.rabbit.properties import Properties, renewed_properties
from conquiet.rabbit.settle import Verdict
from conquiet.rabbit.syncer import ContractBroken

SUFFIX: Final = ".dead"
QUEUE: Final = "x-conquiet-queue"
REASON: Final = "x-conquiet-reason"
ERROR: Final = "x-conquiet-error"
TIME: Final = "x-conquiet-dead-at"
DEATHS: Final = "x-conquiet-deaths"
HEADERS: Final = (QUEUE, REASON, ERROR, TIME)
"""Removed by a replay. :data:`DEATHS` stays: it counts over replays."""


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """The headers of a moved message that describe the move.

    Attributes:
        queue: The queue it was moved from.
        reason: ``refused``, ``retry limit``, or the reason why it could not be read or broke the contract.
        error: Type of the exception; empty without one.
        time: Time of the move in ISO 8601; empty if the header is missing.
        deaths: Number of moves, over all replays.
    """

    queue: str
    reason: str
    error: str
    time: str
    deaths: int


def dead_queue(queue: str) -> str:
    """Return the name of the queue that holds the dead messages of ``queue``."""
    return queue + SUFFIX


def read_move_record(headers: object, dead_letter_queue: str) -> MoveRecord | None:
    """Read the record of the move from the headers of a message in ``dead_letter_queue``; None if it was not moved."""
    if not isinstance(headers, Mapping):
        return None
    queue = headers.get(QUEUE)
    if not isinstance(queue, str) or dead_queue(queue) != dead_letter_queue:
        return None
    return MoveRecord(
        queue, _text(headers.get(REASON)), _text(headers.get(ERROR)), _text(headers.get(TIME)), _deaths(headers)
    )


def with_move_record(raw: bytes, queue: str, verdict: Verdict, now: datetime) -> bytes:
    """Return the properties of a message to be moved: its own, plus the record of the move as headers."""
    properties = Properties(raw)
    error = verdict.error if isinstance(verdict, ContractBroken) else None
    facts: dict[str, Any] = {
        QUEUE: queue,
        REASON: verdict.reason,
        ERROR: "" if error is None else type(error).__name__,
        TIME: now.isoformat(timespec="milliseconds"),
        DEATHS: min(_deaths(properties.headers) + 1, 2**31 - 1),
    }
    return renewed_properties(properties, (*NOT_SENT_AGAIN, *facts), facts)


def _deaths(headers: object) -> int:
    count = headers.get(DEATHS) if isinstance(headers, Mapping) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
