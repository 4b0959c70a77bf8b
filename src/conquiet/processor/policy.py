"""What becomes of a message after an attempt. Pure: facts in, one of three answers out.

    handler returned ─────────────────────────────▶ Done
    raised, may be tried again, attempts left ────▶ RetryAt(delay_ms)
    anything else ────────────────────────────────▶ DeadLetter(reason)

There is no fourth. A handler decides for itself by raising ``Retry`` or ``Reject``.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from conquiet.errors import ConfigurationError, ConquietError
from conquiet.kernel.backoff import Backoff
from conquiet.kernel.validation import require_positive, require_seconds, require_text


class Retry(Exception):  # noqa: N818 - not an error: it says what shall happen
    """Raised by a handler: try this message again, whatever the handler's policy says about exceptions.

    It counts as an attempt: past the last one the message goes to the dead letters.

    Args:
        after: Seconds to wait; the policy's backoff if left out.
    """

    def __init__(self, after: float | None = None) -> None:
        super().__init__("the handler asked for another attempt")
        self.after = None if after is None else require_seconds("after", after, zero_allowed=True)


class Reject(Exception):  # noqa: N818 - the same
    """Raised by a handler: this message can never succeed; to the dead letters with it, at once.

    Args:
        reason: Why, for whoever looks at the dead letters. It is stored and shown: no payload in it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HandlerCancelledError(ConquietError):
    """A handler ended with a cancellation that nobody asked it for: something it awaited had been cancelled.

    It stands for a failure like any other, so that ``retry_for=(Exception,)`` means it, too.
    """

    def __init__(self) -> None:
        super().__init__("the handler awaited something that was cancelled, and did not catch it")


class Reason(Enum):
    """Why a message is dead."""

    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    NOT_RETRYABLE = "not_retryable"
    REJECTED = "rejected"
    UNKNOWN_EVENT = "unknown_event"
    NOT_AN_ENVELOPE = "not_an_envelope"
    MALFORMED = "malformed"
    DELIVERIES_EXHAUSTED = "deliveries_exhausted"


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to do."""


@dataclass(frozen=True, slots=True)
class RetryAt:
    """One more attempt, this many milliseconds from now by the server's clock."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """No more attempts."""

    reason: Reason


Decision = Done | RetryAt | DeadLetter

DONE = Done()

FOR_EVER_MS = 2**52
"""The longest time there is: a script's numbers are floats, and a server refuses what its clock cannot reach."""


def milliseconds(seconds: float) -> int:
    """Return a time in whole milliseconds; one that is longer than there is, is for ever."""
    return round(min(seconds * 1000, FOR_EVER_MS))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, how soon and after which exceptions a message is tried again.

    Attributes:
        max_attempts: Attempts in total. 1, the default, is no retry: nobody asked for one.
        backoff: Wait before the next attempt; ``factor=1`` keeps it fixed.
        retry_for: Exceptions after which another attempt makes sense.
        no_retry_for: Exceptions after which none does. Wins over ``retry_for``.
    """

    max_attempts: int = 1
    backoff: Backoff = field(default_factory=lambda: Backoff(base_s=1.0, factor=2.0, cap_s=3_600.0, jitter=0.5))
    retry_for: tuple[type[BaseException], ...] = (Exception,)
    no_retry_for: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        require_positive("max_attempts", self.max_attempts)
        if not isinstance(self.backoff, Backoff):
            raise ConfigurationError("backoff must be a Backoff")
        for name in ("retry_for", "no_retry_for"):
            kinds = getattr(self, name)
            if not isinstance(kinds, tuple) or not all(
                isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
            ):
                raise ConfigurationError(f"{name} must be a tuple of exception classes")

    @classmethod
    def fixed(cls, delay_s: float, *, max_attempts: int) -> "RetryPolicy":
        """Return a policy that always waits the same time, without jitter."""
        return cls(max_attempts, Backoff(base_s=delay_s, factor=1.0, cap_s=delay_s, jitter=0.0))

    @classmethod
    def exponential(
        cls, base_s: float = 1.0, *, max_attempts: int, cap_s: float = 3_600.0, jitter: float = 0.5
    ) -> "RetryPolicy":
        """Return a policy whose wait doubles up to ``cap_s``."""
        return cls(max_attempts, Backoff(base_s=base_s, factor=2.0, cap_s=cap_s, jitter=jitter))


def decide(
    error: BaseException | None,
    *,
    attempt: int,
    policy: RetryPolicy,
    max_attempts: int | None = None,
    rand: Callable[[], float] = random.random,
) -> Decision:
    """Return what becomes of a message whose attempt has ended.

    Args:
        error: What the handler raised, None if it returned.
        attempt: Which attempt it was, from 1.
        policy: The handler's.
        max_attempts: The message's own number of attempts; it wins over the policy's.
        rand: Source of numbers in [0, 1), for the jitter.
    """
    if error is None:
        return DONE
    if isinstance(error, Reject):
        return DeadLetter(Reason.REJECTED)
    asked = isinstance(error, Retry)
    if not asked and (isinstance(error, policy.no_retry_for) or not isinstance(error, policy.retry_for)):
        return DeadLetter(Reason.NOT_RETRYABLE)
    if attempt >= (policy.max_attempts if max_attempts is None else max_attempts):
        return DeadLetter(Reason.ATTEMPTS_EXHAUSTED)
    if isinstance(error, Retry) and error.after is not None:
        delay_s = error.after
    else:
        delay_s = policy.backoff.delay_s(attempt, rand=rand)
    return RetryAt(math.ceil(min(delay_s * 1000, FOR_EVER_MS)))


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most so many messages of an event start in a time, over all hosts.

    Attributes:
        count: Messages per ``per_s``, spread evenly.
        per_s: That time, in seconds.
        burst: How many may start at once after a quiet time.
    """

    count: int
    per_s: float = 1.0
    burst: int = 1

    def __post_init__(self) -> None:
        require_positive("count", self.count)
        require_seconds("per_s", self.per_s)
        require_positive("burst", self.burst)

    @property
    def turn_us(self) -> int:
        """Microseconds from one turn to the next."""
        return max(1, round(min(self.per_s * 1_000_000 / min(self.count, FOR_EVER_MS), FOR_EVER_MS)))

    def has_lapsed(self, turn_ms: int | None, *, now_ms: int) -> bool:
        """True if a turn is over by more than a second, or by more than one turn where they are further apart.

        Without that, all that was missed would start at once. A turn of an unknown time, as older releases
        booked them, holds.
        """
        return turn_ms is not None and now_ms > turn_ms + max(1_000, self.turn_us // 1_000)


def require_count(name: str, value: object) -> int:
    """Return ``value`` if it is a count that a script can hold."""
    if require_positive(name, value) > FOR_EVER_MS:
        raise ConfigurationError(f"{name} must be below 2**52")
    return require_positive(name, value)


def require_event(event: object) -> str:
    """Return ``event`` if it can be the name of one; ``*`` means a whole stream elsewhere."""
    name = require_text("event", event)
    if name == "*":
        raise ConfigurationError("event must not be '*': that stands for a whole stream")
    return name
