"""What the relay decides, without a database or a broker. Pure.

Order by key rests on one sentence: **who holds the lock of a key's oldest row owns the key**. The
relay locks candidates, then looks which of them are the oldest *after* it has the locks, and publishes a
row only if everything older of its key is published in the same batch, before it.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from conquiet.kernel.backoff import Backoff


class Seen(NamedTuple):
    """A due row with a key as the scan saw it, not locked.

    Attributes:
        seq: Its place in the outbox.
        key: Order key.
    """

    seq: int
    key: bytes


# Not frozen: a frozen dataclass takes twice as long to build, and a relay builds one for each row.
@dataclass(slots=True)
class Letter:
    """A row to publish.

    Attributes:
        seq: Its place in the outbox.
        message_id: What the inbox at the other side knows it by. The same each time it is published.
        key: Order key; None if order does not matter to it.
        payload: JSON object in UTF-8. Not part of ``repr()``.
        attempts: How often it was refused so far.
        age_s: Time since it was written.
        due: Whether its time has come.
    """

    seq: int
    message_id: str
    key: bytes | None
    payload: bytes = field(repr=False)
    attempts: int = 0
    age_s: float = 0.0
    due: bool = True


class Outcome(Enum):
    """What became of a letter at its target. There is no fourth."""

    PUBLISHED = "published"
    REFUSED = "refused"  # its own fault: counts as an attempt
    HELD = "held"  # not its fault, or an older one of its key was not published: stays as it is


@dataclass(frozen=True, slots=True)
class Retry:
    """Refused: try again later."""

    seq: int
    attempts: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class Park:
    """Refused too often: put aside until somebody looks at it."""

    seq: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about a scan.

    Attributes:
        lock: Rows to lock.
        followers: For each key the rows that may follow its first one, unlocked.
        examined: How many rows of the scan this covers; what is behind them was not looked at.
    """

    lock: list[int]
    followers: dict[bytes, list[int]]
    examined: int


def plan(seen: Sequence[Seen], *, batch: int) -> Plan:
    """Choose at most ``batch`` rows of a scan.

    Of a key only the oldest row is locked: a relay that locked followers would keep them from the owner
    of the key. Followers take the room that is left, so one busy key is not published row by row.
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
    room = batch - len(lock)
    followers: dict[bytes, list[int]] = {}
    for seq, key in sorted(younger)[:room]:  # the oldest ones, so that no key gets a gap
        followers.setdefault(key, []).append(seq)
    return Plan(sorted(lock), followers, examined)


def in_order(letters: Iterable[Letter], heads: AbstractSet[int]) -> list[Letter]:
    """Return the letters that may be published now, the oldest first.

    Args:
        letters: Without a key: locked ones. With a key: the oldest of their keys, without a gap.
        heads: Rows that we hold the lock of. A key whose first letter is not among them is somebody else's.
    """
    chosen: list[Letter] = []
    open_key: dict[bytes, bool] = {}
    for letter in sorted(letters, key=lambda one: one.seq):
        if letter.key is not None:
            ours = open_key.get(letter.key, letter.seq in heads) and letter.due
            open_key[letter.key] = ours
            if not ours:
                continue
        chosen.append(letter)
    return chosen


def waves(letters: Sequence[Letter]) -> list[list[Letter]]:
    """Cut a batch so that no key occurs twice in a part.

    For targets that may take a letter after they refused the one before it: the next part is sent when the
    answers for this one are known.
    """
    parts: list[list[Letter]] = []
    place: dict[bytes, int] = {}
    for letter in letters:
        index = 0
        if letter.key is not None:
            index = place.get(letter.key, 0)
            place[letter.key] = index + 1
        if index == len(parts):
            parts.append([])
        parts[index].append(letter)
    return parts


def blocked_keys(letters: Sequence[Letter], outcomes: Sequence[Outcome]) -> set[bytes]:
    """Return the keys of which a letter was not published: nothing younger of theirs may go out."""
    return {
        letter.key
        for letter, outcome in zip(letters, outcomes, strict=True)
        if letter.key is not None and outcome is not Outcome.PUBLISHED
    }


def after_refusal(letter: Letter, *, max_attempts: int, backoff: Backoff) -> Retry | Park:
    """Decide about a refused letter."""
    attempts = letter.attempts + 1
    if attempts >= max_attempts:
        return Park(letter.seq, attempts)
    return Retry(letter.seq, attempts, backoff.delay_s(attempts))
