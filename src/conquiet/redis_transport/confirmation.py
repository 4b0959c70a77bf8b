"""How many replicas must confirm a write. Pure; ``confirmed`` carries it out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conquiet.core.redaction import printable
from conquiet.core.validation import require_seconds
from conquiet.errors import ConfigurationError, NotReplicatedError
from conquiet.redis_transport.hash_tags import slot_prefix

LONGEST_S = 5.0
"""Longest wait for replicas: shorter than the time in which a reply must come."""

DEFAULT_TIMEOUT_S = 1.0

_MARK_MS = 60_000


@dataclass(frozen=True, slots=True)
class Confirmation:
    """How many replicas must have a write, and how long that may take.

    Attributes:
        replicas: Replicas that must confirm; 0 does not wait.
        timeout_s: Longest wait, at most 5 s.
    """

    replicas: int = 0
    timeout_s: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        if type(self.replicas) is not int or self.replicas < 0:
            raise ConfigurationError(f"replicas must be a whole number, 0 or more, got {self.replicas!r:.20}")
        if require_seconds("replicas_timeout_s", self.timeout_s) > LONGEST_S:
            raise ConfigurationError(f"replicas_timeout_s must be at most {LONGEST_S:g} s, got {self.timeout_s:g}")

    def commands(self, stream: str) -> list[tuple[str | int, ...]]:
        """Return the small write and WAIT."""
        mark: tuple[str | int, ...] = ("SET", f"{slot_prefix(stream)}:confirm", "1", "PX", _MARK_MS)
        return [mark, ("WAIT", self.replicas, max(1, round(self.timeout_s * 1000)))]

    def check(self, replies: Sequence[Any], *, stream: str, command: str) -> None:
        """Raise unless enough replicas have confirmed.

        Args:
            replies: Those of ``commands``.
            stream: Where the message was written.
            command: What was confirmed, for the error.
        """
        marked, confirmed = replies
        refused = next((one for one in (marked, confirmed) if isinstance(one, Exception)), None)
        if refused is None and confirmed >= self.replicas:
            return
        number = 0 if refused is not None else int(confirmed)
        text = (
            f"{command} on stream {printable(stream)!r} was written, but {number} of {self.replicas} replicas have "
            f"confirmed it within {self.timeout_s:g} s: a fail-over now may lose it. Send it again with the same id; "
            "conquiet doctor checks the replicas"
        )
        error = NotReplicatedError(
            text, stream=stream, command=command, in_doubt=True, confirmed=number, wanted=self.replicas
        )
        if refused is not None:
            error.__cause__ = refused
        raise error


def confirmation_of(replicas: int, timeout_s: float) -> Confirmation | None:
    """Return what a call asked for; None, at no cost, for the defaults."""
    if type(replicas) is int and not replicas and timeout_s == DEFAULT_TIMEOUT_S:
        return None
    return Confirmation(replicas, timeout_s)
