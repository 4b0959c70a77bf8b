"""Read how a message of a dead-letter queue died. Pure, and tolerant of headers that a publisher wrote."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from conquiet.core.validation import require_string_or_none
from conquiet.rabbit.connection import Fetched
from conquiet.rabbit.dead_letter_headers import MoveRecord, read_move_record
from conquiet.rabbit.death_headers import X_DEATH

_LONGEST_NAME_BYTES: Final = 255


@dataclass(frozen=True, slots=True)
class DeadDelivery:
    """One message of a dead-letter queue.

    Attributes:
        position: Position in the queue, counted from 1 at the front.
        source: The queue it died in; empty if unknown.
        reason: ``rejected``, ``expired``, ``maxlen`` or ``delivery_limit``. For a message that a consumer moved to
            ``<queue>.dead``: the type of the error, or else the reason of the move.
        count: Number of deaths for this reason in this queue.
        exchange: The exchange it was published to before it died.
        routing_key: The key it was published with.
        headers: Names of its headers, without the values: those may be personal data.
        deaths: All its deaths, the newest first.
        body: The content. Not part of ``repr()``.
    """

    position: int
    message_id: str
    source: str
    reason: str
    count: int
    size_bytes: int
    exchange: str
    routing_key: str
    content_type: str
    headers: list[str]
    deaths: list[dict[str, Any]]
    body: bytes

    def __repr__(self) -> str:
        return f"DeadDelivery(position={self.position}, source={self.source!r}, reason={self.reason!r})"

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as plain dicts and lists."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DeliveryCause:
    """Messages of a dead-letter queue with the same source and reason."""

    source: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """Selects messages of a dead-letter queue. A field that is None accepts every value.

    There is no filter by position, because another message may be at that position by the time of the action.
    """

    message_id: str | None = None
    source: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        for name in ("message_id", "source", "reason"):
            require_string_or_none(name, getattr(self, name))

    def accepts(self, one: DeadDelivery) -> bool:
        """Return whether the message is selected."""
        return (
            (self.message_id is None or one.message_id == self.message_id)
            and (self.source is None or one.source == self.source)
            and (self.reason is None or one.reason == self.reason)
        )


EVERYTHING: Final = DeliveryFilter()


def source_queue(headers: object, dead_letter_queue: str) -> str | None:
    """Return the queue in which a message of a dead-letter queue died last; None if unknown."""
    moved = read_move_record(headers, dead_letter_queue)
    name = _newest_death(headers).get("queue") if moved is None else moved.queue
    return name if isinstance(name, str) and name and len(name.encode()) <= _LONGEST_NAME_BYTES else None


def original_key(headers: object) -> str | None:
    """Return the routing key that a message had in the queue it died in; None if unknown."""
    keys = _newest_death(headers).get("routing-keys")
    key = keys[0] if isinstance(keys, list) and keys else None
    return key if isinstance(key, str) and len(key.encode()) <= _LONGEST_NAME_BYTES else None


def describe(position: int, message: Fetched, queue: str) -> DeadDelivery:
    """Describe a message of the dead-letter queue ``queue``."""
    headers = message.headers if isinstance(message.headers, Mapping) else {}
    newest = _newest_death(headers)
    count, keys = newest.get("count"), newest.get("routing-keys")
    moved = read_move_record(headers, queue)
    return DeadDelivery(
        position=position,
        message_id=str(message.properties.message_id or ""),
        source=source_queue(headers, queue) or "",  # a dry run counts the messages that replay() can move
        reason=str(newest.get("reason", "")) if moved is None else moved.error or moved.reason,
        count=moved.deaths if moved is not None else count if isinstance(count, int) else 0,
        size_bytes=len(message.body),
        exchange=str(newest.get("exchange", "")),
        routing_key=str(keys[0]) if isinstance(keys, list) and keys else "",
        content_type=str(message.properties.content_type or ""),
        headers=sorted(str(name) for name in headers if not str(name).startswith("x-")),
        deaths=[*_moved_death(moved), *map(_death, _deaths(headers))],
        body=message.body,
    )


def _deaths(headers: object) -> list[Mapping[Any, Any]]:
    deaths = headers.get(X_DEATH) if isinstance(headers, Mapping) else None
    return [death for death in deaths if isinstance(death, Mapping)] if isinstance(deaths, list) else []


def _newest_death(headers: object) -> Mapping[Any, Any]:
    return next(iter(_deaths(headers)), {})


def _moved_death(moved: MoveRecord | None) -> list[dict[str, Any]]:
    if moved is None:
        return []
    death = {"queue": moved.queue, "reason": moved.reason, "count": moved.deaths, "time": moved.time or None}
    return [death | ({"error": moved.error} if moved.error else {})]


def _death(entry: Mapping[str, Any]) -> dict[str, Any]:
    time = entry.get("time")
    return {
        "queue": str(entry.get("queue", "")),
        "reason": str(entry.get("reason", "")),
        "count": entry.get("count", 0),
        "time": time.isoformat() if isinstance(time, datetime) else None,
    }
