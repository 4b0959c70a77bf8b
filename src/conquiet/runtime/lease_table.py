"""The table of messages under lease, and which of their leases are due or have expired.

See docs/decisions/0010.
"""

from collections.abc import Iterable

from conquiet.core.redaction import printable
from conquiet.core.seen_ids import SeenIds
from conquiet.errors import LeaseLostError
from conquiet.runtime.message import HandlerState, Ownership, RuntimeMessage
from conquiet.runtime.settings import RuntimeSettings


class LeaseTable:
    """Messages delivered to this engine and not yet acknowledged, lost or released."""

    def __init__(self, streams: Iterable[str]) -> None:
        self._held: dict[str, dict[str, RuntimeMessage]] = {stream: {} for stream in streams}
        self._survived = SeenIds()

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def of(self, stream: str) -> dict[str, RuntimeMessage]:
        """Return the held messages of one stream, by id: the live dict, not a copy."""
        return self._held[stream]

    def add(self, messages: Iterable[RuntimeMessage]) -> None:
        """Start extending the leases of these messages."""
        for message in messages:
            self._held[message.stream][message.id] = message

    def release(self, message: RuntimeMessage) -> None:
        """Stop extending a lease. No effect if it was released already or belongs to a newer delivery of the entry."""
        held = self._held[message.stream]
        if held.get(message.id) is message:
            del held[message.id]

    def release_all(self, stream: str, messages: Iterable[RuntimeMessage]) -> None:
        """Call ``release`` for many messages of one stream."""
        held = self._held[stream]
        for message in messages:
            if held.get(message.id) is message:
                del held[message.id]

    def note_survived(self, message: RuntimeMessage) -> None:
        """Record that the handler of this message raised an error: the message does not kill its process."""
        self._survived.add(message.stream, message.id)

    def has_survived(self, message: RuntimeMessage) -> bool:
        """Return True after ``note_survived`` for this entry."""
        return self._survived.is_known(message.stream, message.id)

    def snapshot(self) -> list[RuntimeMessage]:
        """Return a copy of the held messages. Safe from another thread."""
        return [message for held in self._held.values() for message in list(held.values())]


def due(messages: Iterable[RuntimeMessage], now: float, settings: RuntimeSettings) -> list[RuntimeMessage]:
    """Return the messages to extend: not recently extended, not lost, and held for at most ``max_lease_s``. Pure."""
    fresh = now - settings.heartbeat_s / 2
    return [
        message
        for message in messages
        if message.leased_at <= fresh
        and message.ownership in {Ownership.HELD, Ownership.SETTLING}
        and not is_overlong(message, now, settings)
    ]


def is_overlong(message: RuntimeMessage, now: float, settings: RuntimeSettings) -> bool:
    """Return True if the handler has run for more than ``max_lease_s``: other consumers may claim the message. Pure."""
    return bool(message.started_at) and now - message.started_at > settings.max_lease_s


def expired(messages: Iterable[RuntimeMessage], now: float, settings: RuntimeSettings) -> list[RuntimeMessage]:
    """Return overlong messages with an expired lease that is not reported as lost yet. Pure."""
    return [
        message
        for message in messages
        if is_overlong(message, now, settings)
        and message.ownership is Ownership.HELD
        and message.progress is HandlerState.RUNNING
        and now - message.leased_at > settings.claim_idle_s
    ]


def lease_lost(message: RuntimeMessage) -> LeaseLostError:
    """Return the error for a message that another consumer owns."""
    return LeaseLostError(
        f"message {message.id} of stream {printable(message.stream)!r} belongs to another consumer by now; "
        "it was not acknowledged here",
        stream=message.stream,
        message_id=message.id,
    )
