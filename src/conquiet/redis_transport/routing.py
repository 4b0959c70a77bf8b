"""Redis Cluster: which key routes a command, and where a redirected command goes next. Pure: sends nothing.

A node refuses a command that belongs elsewhere before it does anything, so sending that command again is not a
repetition. After a lost reply a command is never sent again from here.

    MOVED        another node owns the slot         sent there, and the slot table is corrected
    ASK          the slot is in migration, the      sent to the importing node behind ASKING; the table stays
                 key is missing on its old owner
    TRYAGAIN     in migration, and the keys of      retried after a pause: the migration ends soon
                 one command are on both nodes
    CLUSTERDOWN  the slot has no owner at the       retried after a pause: a fail-over is in progress
                 moment

The total time is bounded by the timeout of a reply. After it the last refusal is raised.

See docs/decisions/0015.
"""

import time
from collections.abc import Sequence
from typing import Any, AnyStr, NamedTuple

from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, RedisError, TryAgainError

NodeAddress = tuple[str, int]
NodeCommand = tuple[Sequence[Any], dict[str, Any]]
NodeTarget = tuple[NodeAddress, bool]
"""A node, and whether the command needs ASKING there."""

ConnectionFailure = RedisError | OSError

ASKING: NodeCommand = (("ASKING",), {})

REDIRECTS = (AskError, ClusterDownError, TryAgainError)
"""Refusals of a node that has done nothing. ``AskError`` includes MOVED."""

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.2
_PAUSE_AFTER_HOPS = 3
"""Consecutive redirects without a pause. After more, two nodes refer to each other until their views agree."""

_KEYLESS = frozenset({
    "ACL", "ASKING", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "FLUSHALL", "INFO", "LATENCY", "MODULE",
    "PING", "ROLE", "SCAN", "SCRIPT", "SLOWLOG", "TIME", "WAIT",
})  # fmt: skip
_KEY_IS_SECOND = frozenset({"MEMORY", "OBJECT", "XGROUP", "XINFO"})
_SCRIPTS = frozenset({"EVAL", "EVALSHA", "EVALSHA_RO", "EVAL_RO"})
_READS = frozenset({"XREAD", "XREADGROUP"})


def key_of(words: Sequence[Any]) -> bytes | None:
    """Return the first key of a command; None if it has none. Knows the commands that conquiet sends."""
    name, *rest = _text(words[0]).upper().split()  # redis-py writes "XINFO STREAM" as one word
    arguments = [*rest, *words[1:]]
    if name in _KEYLESS:
        return None
    if name in _SCRIPTS:
        return _bytes(arguments[2]) if int(arguments[1]) > 0 else None
    if name in _READS:
        at = next((at for at, word in enumerate(arguments) if _text(word).upper() == "STREAMS"), None)
        return None if at is None else _bytes(arguments[at + 1])
    place = 1 if name in _KEY_IS_SECOND else 0
    return _bytes(arguments[place]) if len(arguments) > place else None


def slot_of(key: str | bytes) -> int:
    """Return the slot of a key."""
    return int(key_slot(_bytes(key)))


def split_by_slot(keys: Sequence[AnyStr], *, in_cluster: bool) -> list[list[AnyStr]]:
    """Split keys for commands with several keys: into one list on a single server, one per slot in a cluster."""
    by_slot: dict[int, list[AnyStr]] = {}
    for key in keys:
        by_slot.setdefault(slot_of(key) if in_cluster else 0, []).append(key)
    return list(by_slot.values())


def raise_first_error(replies: list[Any]) -> list[Any]:
    """Return the replies of a pipeline; raise the first error among them."""
    for reply in replies:
        if isinstance(reply, ConnectionFailure):
            raise reply
    return replies


class Redirect(NamedTuple):
    """The next node for a refused command, and the pause before. ``address`` None: the owner of the slot."""

    address: NodeAddress | None
    asking: bool
    pause_s: float
    slot: int = -1


class CommandRedirects:
    """The redirects of one command.

    Args:
        timeout_s: How long they may take in total.
    """

    __slots__ = ("_deadline", "_hops", "_waits")

    def __init__(self, timeout_s: float) -> None:
        self._deadline = time.monotonic() + timeout_s
        self._hops = 0
        self._waits = 0

    def after(self, error: BaseException | None) -> Redirect | None:
        """Return the next step after a refusal. None if it is not a redirect, or the time has passed."""
        if not isinstance(error, REDIRECTS) or time.monotonic() >= self._deadline:
            return None
        if isinstance(error, AskError):
            self._hops += 1
            pause_s = 0.0 if self._hops <= _PAUSE_AFTER_HOPS else self._pause_s()
            return Redirect((error.host, error.port), not isinstance(error, MovedError), pause_s, error.slot_id)
        return Redirect(None, asking=False, pause_s=self._pause_s())

    def _pause_s(self) -> float:
        self._waits += 1
        return min(_FIRST_PAUSE_S * 2.0 ** min(self._waits, 10), _LONGEST_PAUSE_S)


def _text(word: Any) -> str:
    return word.decode("latin-1") if isinstance(word, bytes) else str(word)


def _bytes(key: Any) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()
