"""One delivery of one stream entry, and its two states.

    progress      WAITING ──▶ RUNNING ──▶ SUCCEEDED | FAILED               written by the event loop
    ownership     HELD ──▶ SETTLING ──▶ ACKNOWLEDGED                       written by the event loop
                   └─────▶ LOST                                            written by event loop and heartbeat thread

They are independent: a handler may acknowledge its message and continue, and it may lose its message while it runs.
"""

import threading
from enum import Enum
from types import TracebackType
from typing import Any, Self

import msgspec


class HandlerState(Enum):
    """The state of the handler."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Ownership(Enum):
    """Whether the entry is pending for this consumer.

    ``SETTLING``: a command that acknowledges or moves the entry is in flight. An entry that is no longer pending is not
    a lost lease then.
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


# The heartbeat thread writes LOST. Without the lock it could overwrite an ACKNOWLEDGED that the loop has just
# written, and a finished message would be reported as lost. Batched acknowledgements never take the lock.
_ownership_lock = threading.Lock()


_SETTLING = Ownership.SETTLING  # an access to a member of an enum class costs as much as a function call


class AckScript(msgspec.Struct, frozen=True, eq=False):
    """A Lua script that replaces XACK and has further effects in the same step.

    Attributes:
        source: The source. It must be idempotent and return how many entries it acknowledged.
        keys: KEYS, the stream first.
        head: The first ARGV. The id and ``RuntimeMessage.ack_args`` of each entry follow.
    """

    source: str
    keys: tuple[str, ...]
    head: tuple[str, ...]


class Settling:
    """See ``RuntimeMessage.settling``.

    Attributes:
        has_moved: Set to True once a script has moved the entry. The message then stays ``SETTLING`` after the block,
            until the engine carries out ``Moved``.
    """

    __slots__ = ("_before", "_message", "has_moved")

    def __init__(self, message: "RuntimeMessage") -> None:
        self._message = message
        self.has_moved = False

    def __enter__(self) -> Self:
        message = self._message
        with _ownership_lock:
            self._before, message.ownership = message.ownership, _SETTLING
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._message.ownership is _SETTLING and not self.has_moved:
            self._message.ownership = self._before


class RuntimeMessage(msgspec.Struct, eq=False):
    """One delivery of one stream entry.

    It is a msgspec struct, because one is built for every message, at a tenth of the cost of a class.

    Attributes:
        stream: Key of the stream.
        id: Entry id, ``milliseconds-sequence``.
        data: The decoded JSON object. Not part of ``repr()``: it may be personal data.
        raw: The bytes it was decoded from. A handler may change ``data``.
        leased_at: The last time, on the monotonic clock, at which this consumer certainly owned the entry.
        delivery_count: Number of deliveries, including this one and those to killed processes.
        started_at: When the handler was called, on the monotonic clock. 0 before that.
        progress: State of the handler.
        ownership: Whether the entry is pending for this consumer.
        charge: When the server counts this delivery.
        malformed: Why the entry is not a message. Empty if it is one.
        decoded: The executor's decoded form of the message, used for its settlement.
        ack_script: Script that replaces XACK, if the executor has set one.
        ack_args: Arguments of that script for this message.
        cancel_requested: True once cancellation of the handler was requested.
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
        """The payload bytes, under the attribute name that the inbox reads."""
        return self.raw

    @property
    def acknowledged(self) -> bool:
        """True once the entry was acknowledged early, or moved by a script."""
        return self.ownership is Ownership.ACKNOWLEDGED

    @property
    def lease_lost(self) -> bool:
        """True once the engine knows that another consumer owns the entry."""
        return self.ownership is Ownership.LOST

    @property
    def has_ended(self) -> bool:
        """True once the handler has ended."""
        return self.progress is HandlerState.SUCCEEDED or self.progress is HandlerState.FAILED

    def settling(self) -> "Settling":
        """Return a context in which no lost lease is reported. ``mark_acknowledged()`` or ``has_moved`` confirms it."""
        return Settling(self)

    def mark_acknowledged(self) -> None:
        """Record that the entry is no longer pending."""
        with _ownership_lock:
            self.ownership = Ownership.ACKNOWLEDGED

    def lose(self) -> bool:
        """Record that another consumer owns the entry. False unless it was HELD. Safe from any thread."""
        with _ownership_lock:
            if self.ownership is not Ownership.HELD:
                return False
            self.ownership = Ownership.LOST
            return True

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show the fields of ``repr()`` without the payload: rich would show every field of a struct."""
        return [("stream", self.stream), ("id", self.id), ("delivery_count", self.delivery_count)]

    def __repr__(self) -> str:
        return f"RuntimeMessage(stream={self.stream!r}, id={self.id!r}, delivery_count={self.delivery_count})"
