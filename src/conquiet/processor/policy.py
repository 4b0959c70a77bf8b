"""What becomes of a message after a failed attempt. Pure: facts in, a settlement out.

    may be retried, attempts left ────▶ settlement.RetryLater(delay_ms)
    anything else ────────────────────▶ settlement.DeadLetter(reason)

A handler decides for itself by raising ``Retry`` or ``Reject``.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from conquiet.core import settlement
from conquiet.core.backoff import Backoff
from conquiet.core.validation import require_positive, require_seconds, require_text
from conquiet.errors import ConfigurationError, ConquietError


class Retry(Exception):  # noqa: N818 - not an error: it says what shall happen
    """Raised by a handler: retry this message, whatever the handler's policy says about exceptions.

    It counts as an attempt: past the last one the message goes to the dead letters.

    Args:
        after_s: Seconds to wait; the policy's backoff if left out.
    """

    def __init__(self, after_s: float | None = None) -> None:
        super().__init__("the handler asked for another attempt")
        self.after_s = None if after_s is None else require_seconds("after_s", after_s, zero_allowed=True)


class Reject(Exception):  # noqa: N818 - the same
    """Raised by a handler: dead-letter this message at once; it can never succeed.

    Args:
        reason: Why. It is stored with the dead letter and shown: no payload in it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HandlerCancelledError(ConquietError):
    """A handler ended with a cancellation that the engine did not ask for: something it awaited was cancelled.

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


LONGEST_MS = 2**52
"""The longest time: a script's numbers are floats, and a server refuses what its clock cannot represent."""


def milliseconds(seconds: float) -> int:
    """Return a time in whole milliseconds, clamped to ``LONGEST_MS``."""
    return round(min(seconds * 1000, LONGEST_MS))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, how soon and after which exceptions a message is tried again.

    Attributes:
        max_attempts: Attempts in total. 1, the default, is no retry.
        backoff: Wait before the next attempt; ``factor=1`` keeps it fixed.
        retry_for: Exceptions after which another attempt makes sense.
        no_retry_for: Exceptions after which none does. Wins over ``retry_for``.
        steps_aside: What a failed message that has a key does until its next attempt. False, the default, keeps its
            key: the messages behind it wait, and order holds through retries. True lets them go first, and the
            message joins the end of its key's line when it is due.
    """

    max_attempts: int = 1
    backoff: Backoff = field(default_factory=lambda: Backoff(base_s=1.0, factor=2.0, cap_s=3_600.0, jitter=0.5))
    retry_for: tuple[type[BaseException], ...] = (Exception,)
    no_retry_for: tuple[type[BaseException], ...] = ()
    steps_aside: bool = False

    def __post_init__(self) -> None:
        require_positive("max_attempts", self.max_attempts)
        if not isinstance(self.steps_aside, bool):
            raise ConfigurationError("steps_aside must be True or False")
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
    error: BaseException,
    *,
    attempt: int,
    policy: RetryPolicy,
    max_attempts: int | None = None,
    rand: Callable[[], float] = random.random,
) -> settlement.RetryLater | settlement.DeadLetter:
    """Return what becomes of a message whose attempt has ended.

    Args:
        error: What the handler raised.
        attempt: Which attempt it was, from 1.
        policy: The handler's.
        max_attempts: The message's own number of attempts; it wins over the policy's.
        rand: Source of numbers in [0, 1), for the jitter.
    """
    max_attempts = policy.max_attempts if max_attempts is None else max_attempts
    if isinstance(error, Reject):
        return settlement.DeadLetter(Reason.REJECTED.value, error, max_attempts=max_attempts)
    asked = isinstance(error, Retry)
    if not asked and (isinstance(error, policy.no_retry_for) or not isinstance(error, policy.retry_for)):
        return settlement.DeadLetter(Reason.NOT_RETRYABLE.value, error, max_attempts=max_attempts)
    if attempt >= max_attempts:
        return settlement.DeadLetter(Reason.ATTEMPTS_EXHAUSTED.value, error, max_attempts=max_attempts)
    if isinstance(error, Retry) and error.after_s is not None:
        delay_s = error.after_s
    else:
        delay_s = policy.backoff.delay_s(attempt, rand=rand)
    delay_ms = math.ceil(min(delay_s * 1000, LONGEST_MS))
    return settlement.RetryLater(delay_ms, error, steps_aside=policy.steps_aside, max_attempts=max_attempts)


def allowed_attempts(own: int | None, policy: RetryPolicy, limit: int | None = None) -> int:
    """Return how many attempts a message has.

    Args:
        own: The message's own number, which any producer may have written.
        policy: The handler's; it holds for a message without a number, and bounds the others.
        limit: A larger bound for messages with a number; None: the policy's.
    """
    return policy.max_attempts if own is None else min(own, max(policy.max_attempts, limit or 0))


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
    def interval_us(self) -> int:
        """Microseconds between two starts."""
        return max(1, round(min(self.per_s * 1_000_000 / min(self.count, LONGEST_MS), LONGEST_MS)))

    def has_expired(self, reserved_ms: int | None, *, now_ms: int) -> bool:
        """True if a reserved start is over by more than a second, or by more than one interval where that is longer.

        Otherwise everything that was missed would start at once. A reservation without a time holds.
        """
        return reserved_ms is not None and now_ms > reserved_ms + max(1_000, self.interval_us // 1_000)


def require_count(name: str, value: object) -> int:
    """Return ``value`` if it is a count that a script can hold."""
    if require_positive(name, value) > LONGEST_MS:
        raise ConfigurationError(f"{name} must be below 2**52")
    return require_positive(name, value)


def require_event(event: object) -> str:
    """Return ``event`` if it can be the name of one; ``*`` means a whole stream elsewhere."""
    name = require_text("event", event)
    if name == "*":
        raise ConfigurationError("event must not be '*': that stands for a whole stream")
    return name
