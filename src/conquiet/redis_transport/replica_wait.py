"""Return from a write only when replicas have it: WAIT, on the connection of the write.

Redis replicates asynchronously. A master that fails may have acknowledged a write that no replica has, and the promoted
replica does not know it. WAIT delays the reply until a number of replicas has confirmed everything up to the last
write of its connection. A small write is sent between the two: a script that found its message already stored (the same
id again) has written nothing, and WAIT would have nothing to wait for.

If a node of a cluster redirects the write, all three commands go to the other node, in order.

See docs/decisions/0008.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoScriptError, RedisError, ResponseError

from conquiet.core.redaction import printable
from conquiet.core.validation import require_positive, require_seconds
from conquiet.errors import ConfigurationError, NotReplicatedError
from conquiet.redis_transport.client import AnyServer, ClusterRouted
from conquiet.redis_transport.client_commands import execute_all
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.connection import RedisConnection
from conquiet.redis_transport.errors import translate, translate_errors
from conquiet.redis_transport.hash_tags import slot_prefix
from conquiet.redis_transport.limiter import limit
from conquiet.redis_transport.scripts import Arg, Script

LONGEST_S = 5.0
"""Longest wait for replicas: shorter than the time within which a reply must arrive."""

DEFAULT_TIMEOUT_S = 1.0

_MARK_MS = 60_000


@dataclass(frozen=True, slots=True)
class ReplicaWait:
    """Number of replicas that must have a write, and the longest wait for them.

    Attributes:
        replicas: Replicas that must confirm; 0 does not wait.
        timeout_s: Longest wait, at most 5 s.
    """

    replicas: int = 0
    timeout_s: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        require_positive("replicas", self.replicas, zero_allowed=True)
        if require_seconds("replicas_timeout_s", self.timeout_s) > LONGEST_S:
            raise ConfigurationError(f"replicas_timeout_s must be at most {LONGEST_S:g} s, got {self.timeout_s:g}")

    def commands(self, stream: str) -> list[tuple[str | int, ...]]:
        """Return the small write and WAIT."""
        mark: tuple[str | int, ...] = ("SET", f"{slot_prefix(stream)}:confirm", "1", "PX", _MARK_MS)
        return [mark, ("WAIT", self.replicas, max(1, round(self.timeout_s * 1000)))]

    def check(self, replies: Sequence[Any], *, stream: str, command: str) -> None:
        """Raise unless enough replicas have confirmed.

        Args:
            replies: The replies to ``commands``.
            stream: Stream of the message.
            command: Name of the write, for the error.
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


def replica_wait_of(replicas: int, timeout_s: float) -> ReplicaWait | None:
    """Return the wait for these arguments of a call; None, at no cost, for the defaults."""
    if type(replicas) is int and not replicas and timeout_s == DEFAULT_TIMEOUT_S:
        return None
    return ReplicaWait(replicas, timeout_s)


async def run_replicated(
    script: Script, client: AnyServer, keys: Sequence[str], args: Sequence[Arg], wait: ReplicaWait, stream: str
) -> Any:
    """Run a script once and return its reply when enough replicas have confirmed it.

    Raises:
        NotReplicatedError: Too few replicas confirmed in time. The script has run.
        QueueError: The server refused or did not reply.
    """
    with translate_errors(script.action, stream=stream):
        async with limit(client, keys[0]):
            replies = await _send(client, script.words(keys, args), wait, stream)
            if isinstance(replies[0], NoScriptError):
                replies = await _send(client, script.words(keys, args, in_full=True), wait, stream)
            first, *confirmation = replies
            if isinstance(first, RedisError | OSError):
                raise first
            wait.check(confirmation, stream=stream, command=script.action)
            return script.parsed(first)


def write_replicated(
    connection: RedisConnection, command: str, packed: bytes, wait: ReplicaWait | None, *, stream: str, group: str = ""
) -> Any:
    """Send a packed write once and return its reply when enough replicas have confirmed it. None does not wait.

    Raises:
        NotReplicatedError: Too few replicas confirmed in time. The write was done.
        QueueError: The server refused or did not reply.
    """
    if wait is None or not wait.replicas:
        return connection.call(command, packed, stream=stream, group=group)
    sent = [packed, *(pack(*one) for one in wait.commands(stream))]
    first, *confirmation = connection.call_together(command, sent, stream=stream, group=group, wait_s=wait.timeout_s)
    if isinstance(first, ResponseError):
        raise translate(first, stream=stream, group=group, command=command) from first
    wait.check(confirmation, stream=stream, command=command)
    return first


async def _send(client: AnyServer, words: Sequence[Arg], wait: ReplicaWait, stream: str) -> Sequence[Any]:
    commands = [tuple(words), *wait.commands(stream)]
    if not isinstance(client, ClusterRouted):
        return await execute_all(client, commands)
    sent: Any = client.send_together([(command, {}) for command in commands])
    replies: Sequence[Any] = await sent if inspect.isawaitable(sent) else sent
    return replies
