"""The settlement of a message. An executor returns one of these types; one place carries it out.

    Acknowledge    the work is done (or rejected on purpose): remove the message from the pending list
    KeepPending    the handler failed and no policy applies: pending until the entry is stale and claimed
    RetryLater     a new attempt later; the attempt is charged
    Defer          the same attempt later; nothing is charged
    DeadLetter     moved to the dead letters, with the reason
    Release        returned to the group, uncharged: the worker stops, or a server it needs is unavailable
    Moved          a script has already moved the message, in the same atomic step as its decision
    Stop           as Release, and the worker ends with the error

``failure`` is the handler's error, for events and logs. It is not raised again.

The types are msgspec structs, because one is built for every failure, at a third of the cost of a frozen dataclass.

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
        delay_ms: Delay from now, on the server's clock.
        failure: Error of the failed attempt.
        yields_turn: The next message of the key runs first. False holds the key until the last attempt has ended.
    """

    delay_ms: int
    failure: BaseException | None = None
    yields_turn: bool = False
    max_attempts: int | None = None  # for the log


class Defer(msgspec.Struct, frozen=True):
    """Deliver the message again later, as the same attempt.

    Attributes:
        delay_ms: Delay from now, on the server's clock.
        until_ms: Unix time in milliseconds, instead of a delay.
        unknown_since_ms: When the message was first found without a handler. It is stored with the message.
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
    """Do nothing: a script has removed the message from the pending list and stored it elsewhere."""

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
"""The settlement of every success. One shared object, so that a success allocates nothing."""
KEEP_PENDING = KeepPending()
MOVED = Moved()
