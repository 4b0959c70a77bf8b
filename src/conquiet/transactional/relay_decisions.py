"""The relay's decisions: which rows may be published now, and what follows a refusal. Pure.

Order by key rests on one rule: **the relay that holds the lock of a key's oldest row owns the key**. The
relay locks candidates, then reads which of them are the oldest *after* it has the locks, and publishes a
row only if everything older of its key is published in the same batch, before it.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from conquiet.core.backoff import Backoff


class Candidate(NamedTuple):
    """A due row with a key, as scanned and not locked.

    Attributes:
        seq: Its position in the outbox.
        key: Order key.
    """

    seq: int
    key: bytes


# Not frozen: a frozen dataclass takes twice as long to build, and a relay builds one for each row.
@dataclass(slots=True)
class OutboxMessage:
    """A row to publish.

    Attributes:
        seq: Its position in the outbox.
        message_id: Identifies it to the receiver's inbox. The same each time it is published.
        key: Order key; None if order does not matter to it.
        payload: JSON object in UTF-8. Not part of ``repr()``.
        attempts: How often it was refused so far.
        age_s: Time since it was written.
        due: Whether its time has come.
        event: The event it carries; None leaves that to the target.
        created_ms: When it was written, in milliseconds since the epoch, by the database's clock.
        headers: Names and texts sent with it, including the trace context.
    """

    seq: int
    message_id: str
    key: bytes | None
    payload: bytes = field(repr=False)
    attempts: int = 0
    age_s: float = 0.0
    due: bool = True
    event: str | None = None
    created_ms: int = 0
    headers: dict[str, str] | None = field(default=None, repr=False)


class PublishOutcome(Enum):
    """The result of publishing a message."""

    PUBLISHED = "published"
    REFUSED = "refused"  # the message is at fault: counts as an attempt
    DEFERRED = "deferred"  # the target is at fault, or an older message of its key was not published: no attempt


@dataclass(frozen=True, slots=True)
class RetryRow:
    """Refused: try again later."""

    seq: int
    attempts: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class Park:
    """Refused too often: leave it out until an operator unparks it."""

    seq: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows of a scan to lock.

    Attributes:
        lock: Rows to lock.
        followers: For each key the rows that may follow its first one, unlocked.
        examined: How many rows of the scan this covers; later rows were not examined.
    """

    lock: list[int]
    followers: dict[bytes, list[int]]
    examined: int


def plan(seen: Sequence[Candidate], *, batch: int) -> Plan:
    """Choose at most ``batch`` rows of a scan.

    Of a key only the oldest row is locked: a relay that locked followers would keep them from the owner
    of the key. Followers fill the rest of the batch, so one busy key is not published row by row.
    """
    by_key: dict[bytes, list[int]] = {}
    examined = 0
    for row in seen:
        if row.key in by_key:
            by_key[row.key].append(row.seq)
        elif len(by_key) == batch:
            break
        else:
            by_key[row.key] = [row.seq]
        examined += 1
    lock: list[int] = []
    younger: list[tuple[int, bytes]] = []
    for key, seqs in by_key.items():
        first, *rest = sorted(seqs)  # a scan is ordered by the time they are due
        lock.append(first)
        younger += ((seq, key) for seq in rest)
    rest_of_batch = batch - len(lock)
    followers: dict[bytes, list[int]] = {}
    for seq, key in sorted(younger)[:rest_of_batch]:  # the oldest ones, so that no key gets a gap
        followers.setdefault(key, []).append(seq)
    return Plan(sorted(lock), followers, examined)


def in_order(messages: Iterable[OutboxMessage], heads: AbstractSet[int]) -> list[OutboxMessage]:
    """Return the messages that may be published now, the oldest first.

    Args:
        messages: Without a key: locked ones. With a key: the oldest of their keys, without a gap.
        heads: Rows that this relay has locked. If the first message of a key is not among them, another relay owns
            the key.
    """
    chosen: list[OutboxMessage] = []
    open_key: dict[bytes, bool] = {}
    for message in sorted(messages, key=lambda one: one.seq):
        if message.key is not None:
            ours = open_key.get(message.key, message.seq in heads) and message.due
            open_key[message.key] = ours
            if not ours:
                continue
        chosen.append(message)
    return chosen


def batches_without_key_repeats(messages: Sequence[OutboxMessage]) -> list[list[OutboxMessage]]:
    """Cut a batch so that no key occurs twice in a part.

    For targets that may take a message after they refused the one before it: the next part is sent when the
    results of this one are known.
    """
    parts: list[list[OutboxMessage]] = []
    place: dict[bytes, int] = {}
    for message in messages:
        index = 0
        if message.key is not None:
            index = place.get(message.key, 0)
            place[message.key] = index + 1
        if index == len(parts):
            parts.append([])
        parts[index].append(message)
    return parts


def blocked_keys(messages: Sequence[OutboxMessage], outcomes: Sequence[PublishOutcome]) -> set[bytes]:
    """Return the keys of messages that were not published: later messages of these keys must wait."""
    return {
        message.key
        for message, outcome in zip(messages, outcomes, strict=True)
        if message.key is not None and outcome is not PublishOutcome.PUBLISHED
    }


def after_refusal(message: OutboxMessage, *, max_attempts: int, backoff: Backoff) -> RetryRow | Park:
    """Decide whether a refused message is tried again."""
    attempts = message.attempts + 1
    if attempts >= max_attempts:
        return Park(message.seq, attempts)
    return RetryRow(message.seq, attempts, backoff.delay_s(attempts))
