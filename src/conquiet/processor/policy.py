"""Decide the settlement of a message after a failed attempt. Pure: facts in, a settlement out.

    may be retried, attempts left ────▶ settlement.RetryLater(delay_ms)
    anything else ────────────────────▶ settlement.DeadLetter(reason)

A handler overrides the policy by raising ``Retry`` or ``Reject``.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from conquiet.core import settlement
from conquiet.core.backoff import Backoff
from conquiet.core.validation import require_bool, require_instance, require_positive, require_seconds, require_text
from conquiet.errors import ConfigurationError, ConquietError


class Retry(Exception):  # noqa: N818 - not an error but an instruction
    """Raised by a handler to retry its message, regardless of ``retry_for`` and ``no_retry_for`` of the policy.

    It counts as an attempt: after the last attempt the message is dead-lettered.

    Args:
        after_s: Delay in seconds. Default: the backoff of the policy.
    """

    def __init__(self, after_s: float | None = None) -> None:
        super().__init__("the handler asked for another attempt")
        self.after_s = None if after_s is None else require_seconds("after_s", after_s, zero_allowed=True)


class Reject(Exception):  # noqa: N818 - not an error but an instruction
    """Raised by a handler to dead-letter its message without further attempts, because it can never succeed.

    Args:
        reason: The reason. It is stored with the dead letter and displayed, so it must not contain the payload.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HandlerCancelledError(ConquietError):
    """A handler ended with a cancellation that the engine did not request: something it awaited was cancelled.

    It is treated like any other exception, so ``retry_for=(Exception,)`` matches it.
    """

    def __init__(self) -> None:
        super().__init__("the handler awaited something that was cancelled, and did not catch it")


class Reason(Enum):
    """Reasons why a message was dead-lettered. The dead letter stores the value."""

    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    NOT_RETRYABLE = "not_retryable"
    REJECTED = "rejected"
    UNKNOWN_EVENT = "unknown_event"
    NOT_AN_ENVELOPE = "not_an_envelope"
    MALFORMED = "malformed"
    DELIVERIES_EXHAUSTED = "deliveries_exhausted"


LONGEST_MS = 2**52
"""The longest duration: Lua numbers are floats, and the server rejects times that its clock cannot represent."""


def milliseconds(seconds: float) -> int:
    """Return a time in whole milliseconds, clamped to ``LONGEST_MS``."""
    return round(min(seconds * 1000, LONGEST_MS))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number and delay of retries, and the exceptions that are retried.

    Attributes:
        max_attempts: Total number of attempts. 1, the default, means no retry.
        backoff: Delay before the next attempt. ``factor=1`` keeps it fixed.
        retry_for: Exceptions that are retried.
        no_retry_for: Exceptions that are not retried. Takes precedence over ``retry_for``.
        yields_turn: Whether a failed message yields its turn until its next attempt. False, the default, holds the
            key: later messages of the key wait, and order holds through retries. True starts them first, and the
            message is appended to the queue of its key when it is due.
    """

    max_attempts: int = 1
    backoff: Backoff = field(default_factory=lambda: Backoff(base_s=1.0, factor=2.0, cap_s=3_600.0, jitter=0.5))
    retry_for: tuple[type[BaseException], ...] = (Exception,)
    no_retry_for: tuple[type[BaseException], ...] = ()
    yields_turn: bool = False

    def __post_init__(self) -> None:
        require_positive("max_attempts", self.max_attempts)
        require_bool("yields_turn", self.yields_turn)
        require_instance("backoff", self.backoff, Backoff)
        for name in ("retry_for", "no_retry_for"):
            kinds = getattr(self, name)
            if not isinstance(kinds, tuple) or not all(
                isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
            ):
                raise ConfigurationError(f"{name} must be a tuple of exception classes")

    @classmethod
    def fixed(cls, delay_s: float, *, max_attempts: int) -> "RetryPolicy":
        """Return a policy with a constant delay, without jitter."""
        return cls(max_attempts, Backoff(base_s=delay_s, factor=1.0, cap_s=delay_s, jitter=0.0))

    @classmethod
    def exponential(
        cls, base_s: float = 1.0, *, max_attempts: int, cap_s: float = 3_600.0, jitter: float = 0.5
    ) -> "RetryPolicy":
        """Return a policy with a delay that doubles up to ``cap_s``."""
        return cls(max_attempts, Backoff(base_s=base_s, factor=2.0, cap_s=cap_s, jitter=jitter))


def decide(
    error: BaseException,
    *,
    attempt: int,
    policy: RetryPolicy,
    max_attempts: int | None = None,
    rand: Callable[[], float] = random.random,
) -> settlement.RetryLater | settlement.DeadLetter:
    """Return the settlement of a message after a failed attempt.

    Args:
        error: The handler's error.
        attempt: Number of the attempt, from 1.
        policy: The policy of the handler.
        max_attempts: Number of attempts of the message, which takes precedence over the policy.
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
    return settlement.RetryLater(delay_ms, error, yields_turn=policy.yields_turn, max_attempts=max_attempts)


def allowed_attempts(own: int | None, policy: RetryPolicy, limit: int | None = None) -> int:
    """Return the total number of attempts of a message.

    Args:
        own: The number in the message, which any producer may have written.
        policy: The policy of the handler. It applies to messages without a number, and limits the others.
        limit: A higher limit for messages with a number. None: the policy is the limit.
    """
    return policy.max_attempts if own is None else min(own, max(policy.max_attempts, limit or 0))


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Maximum number of messages of an event that start per period, over all hosts.

    Attributes:
        count: Messages per ``per_s``, spread evenly.
        per_s: The period, in seconds.
        burst: How many may start together after an idle time.
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
        """Return True if a reserved start is past by more than a second, or one interval if that is longer.

        Without this, all missed messages would start together. A reservation without a time does not expire.
        """
        return reserved_ms is not None and now_ms > reserved_ms + max(1_000, self.interval_us // 1_000)


def require_count(name: str, value: object) -> int:
    """Return ``value`` if it is a count that a Lua number can hold."""
    return require_positive(name, value, most=LONGEST_MS)


def require_event(event: object) -> str:
    """Return ``event`` if it is a valid event name. ``*`` is reserved for a whole stream."""
    name = require_text("event", event)
    if name == "*":
        raise ConfigurationError("event must not be '*': that stands for a whole stream")
    return name
