"""What becomes of a message. An executor returns one of these; one place per broker carries it out.

    Acknowledge    the work is done (or refused on purpose): remove the message from the pending list
    KeepPending    the handler failed and no policy applies: pending until the entry is stale and claimed
    RetryLater     a new attempt later; the attempt is charged
    Defer          the same attempt later; nothing is charged
    DeadLetter     moved to the dead letters, with the reason
    Release        returned to the group at once, uncharged: the worker stops, or a server it needs is unavailable
    Moved          the server has moved the message already, in the atomic step that decided so
    Stop           as Release, and the worker ends with the error

``failure`` is what the handler raised, for events and logs. It is not raised again.

msgspec structs, because one is built for every failure: at a third of the cost of a frozen dataclass.

See docs/decisions/0031.
"""

import msgspec


class Acknowledge(msgspec.Struct, frozen=True):
    """Remove the message from the pending list."""

    failure: BaseException | None = None


class KeepPending(msgspec.Struct, frozen=True):
    """Leave the message pending. Another worker claims it once it is stale."""

    failure: BaseException | None = None


class RetryLater(msgspec.Struct, frozen=True):
    """Deliver the message again after a delay, as its next attempt.

    Attributes:
        delay_ms: From now, on the server's clock.
        failure: Why the attempt failed.
        steps_aside: Let the next message of its key go first. False keeps the key until its last attempt has ended.
    """

    delay_ms: int
    failure: BaseException | None = None
    steps_aside: bool = False
    max_attempts: int | None = None  # for the log


class Defer(msgspec.Struct, frozen=True):
    """Deliver the message again later, as the same attempt.

    Attributes:
        delay_ms: From now, on the server's clock.
        until_ms: Unix time in milliseconds, instead of a delay.
        unknown_since_ms: Since when the message has had no handler; the message keeps it.
    """

    delay_ms: int = 0
    until_ms: int | None = None
    unknown_since_ms: int | None = None
    failure: BaseException | None = None


class DeadLetter(msgspec.Struct, frozen=True):
    """Move the message to the dead letters."""

    reason: str
    failure: BaseException | None = None
    note: str = ""
    max_attempts: int | None = None  # for the log


class Release(msgspec.Struct, frozen=True):
    """Return the message to its group, uncharged."""

    failure: BaseException | None = None


class Moved(msgspec.Struct, frozen=True):
    """Do nothing: a script has taken the message off the pending list and stored it elsewhere."""

    failure: BaseException | None = None


class Stop(msgspec.Struct, frozen=True):
    """Return the message to its group and end the worker with the error."""

    failure: BaseException


_NAMES: dict[type, str] = {
    Acknowledge: "acknowledge",
    KeepPending: "keep_pending",
    RetryLater: "retry",
    Defer: "defer",
    DeadLetter: "dead_letter",
    Release: "release",
    Moved: "moved",
    Stop: "stop",
}


def settlement_name(settlement: object) -> str:
    """Return the name of a settlement, for traces."""
    return _NAMES.get(type(settlement), "")


Settlement = Acknowledge | KeepPending | RetryLater | Defer | DeadLetter | Release | Moved | Stop

ACKNOWLEDGE = Acknowledge()
"""The settlement of every success: one object, because a no-op handler must not pay for a new one."""
KEEP_PENDING = KeepPending()
MOVED = Moved()
