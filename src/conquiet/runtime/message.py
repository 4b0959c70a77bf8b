"""One delivery of one stream entry, and the two states that it is in.

    progress      WAITING ──▶ RUNNING ──▶ SUCCEEDED | FAILED               written by the event loop
    ownership     HELD ──▶ SETTLING ──▶ ACKNOWLEDGED                       written by the event loop
                   └─────▶ LOST                                            written by the heartbeat's thread, too

They are independent: a handler may acknowledge its message and go on, and it may lose its message while it runs.
"""

import threading
from enum import Enum
from types import TracebackType
from typing import Any

import msgspec


class HandlerState(Enum):
    """How far the handler has come."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Ownership(Enum):
    """Whether the entry is pending for this consumer.

    ``SETTLING``: the server is being asked to acknowledge or move the entry. That it is not pending for us any more is
    no loss then.
    """

    HELD = "held"
    SETTLING = "settling"
    ACKNOWLEDGED = "acknowledged"
    LOST = "lost"


class Charge(Enum):
    """When the server counts this delivery. See ``claiming``."""

    COUNTED = "counted"
    AT_START = "at start"
    AT_START_ALONE = "at start, and nothing runs beside it"


# The heartbeat's thread writes LOST. Without the lock it could overwrite an ACKNOWLEDGED that the loop has just
# written, and a finished message would be reported as lost. Messages that are plainly acknowledged never take it.
_ownership_lock = threading.Lock()


_SETTLING = Ownership.SETTLING  # an access to a member of an enum class costs as much as a function call


class AckScript(msgspec.Struct, frozen=True, eq=False):
    """A Lua script that acknowledges entries in place of XACK, and does more in the same step.

    Attributes:
        source: Its text. It answers how many entries it has acknowledged, and a second call changes nothing.
        keys: Its KEYS, the stream first.
        head: Its first ARGV. Per entry follow the entry's id and ``RuntimeMessage.ack_args``.
    """

    source: str
    keys: tuple[str, ...]
    head: tuple[str, ...]


class Settling:
    """See ``RuntimeMessage.settling``."""

    __slots__ = ("_before", "_message")

    def __init__(self, message: "RuntimeMessage") -> None:
        self._message = message

    def __enter__(self) -> None:
        message = self._message
        with _ownership_lock:
            self._before, message.ownership = message.ownership, _SETTLING

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._message.ownership is _SETTLING:
            self._message.ownership = self._before


class RuntimeMessage(msgspec.Struct, eq=False):
    """One delivery of one stream entry.

    A msgspec struct, because one is built for every message: at a tenth of the cost of a class.

    Attributes:
        stream: Key of the stream.
        id: Entry id, ``milliseconds-sequence``.
        data: The decoded JSON object. Not part of ``repr()``: it may be personal data.
        raw: The bytes it was decoded from: a handler may change ``data``.
        leased_at: On the monotonic clock, a moment at which the entry was certainly ours.
        delivery_count: How often the server has delivered the entry, this time and killed processes included.
        started_at: The same clock when its handler was called; 0 before that.
        progress: How far the handler has come.
        ownership: Whether the entry is pending for us.
        charge: When the server counts this delivery.
        malformed: Why the entry is no message; empty if it is one.
        decoded: What an executor has decoded from it, for its settlement.
        ack_script: Acknowledges it in place of XACK, if the executor has set one.
        ack_args: What that script needs to know of this message.
        cancel_requested: True once an executor was asked to cancel the work on it.
    """

    stream: str
    id: str
    data: dict[str, Any]
    raw: bytes = b""
    leased_at: float = 0.0
    delivery_count: int = 1
    started_at: float = 0.0
    progress: HandlerState = HandlerState.WAITING
    ownership: Ownership = Ownership.HELD
    charge: Charge = Charge.COUNTED
    malformed: str = ""
    decoded: Any = None
    ack_script: AckScript | None = None
    ack_args: tuple[str, ...] = ()
    cancel_requested: bool = False

    @property
    def payload_bytes(self) -> bytes:
        """The bytes of the payload, by the name under which an inbox looks for them."""
        return self.raw

    @property
    def acknowledged(self) -> bool:
        """True once the entry was acknowledged early, or moved by a script."""
        return self.ownership is Ownership.ACKNOWLEDGED

    @property
    def lease_lost(self) -> bool:
        """True once it is known that the entry belongs to another consumer."""
        return self.ownership is Ownership.LOST

    @property
    def has_ended(self) -> bool:
        """True once the handler has ended."""
        return self.progress is HandlerState.SUCCEEDED or self.progress is HandlerState.FAILED

    def settling(self) -> "Settling":
        """Report no loss while the server is asked to take the entry. ``mark_acknowledged()`` says that it has."""
        return Settling(self)

    def mark_acknowledged(self) -> None:
        """Note that the entry is not pending any more."""
        with _ownership_lock:
            self.ownership = Ownership.ACKNOWLEDGED

    def lose(self) -> bool:
        """Note that the entry belongs to another consumer. False if that is known, or no loss. Any thread."""
        with _ownership_lock:
            if self.ownership is not Ownership.HELD:
                return False
            self.ownership = Ownership.LOST
            return True

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show what ``repr()`` shows, and no payload: a struct would give rich all of its fields."""
        return [("stream", self.stream), ("id", self.id), ("delivery_count", self.delivery_count)]

    def __repr__(self) -> str:
        return f"RuntimeMessage(stream={self.stream!r}, id={self.id!r}, delivery_count={self.delivery_count})"
