"""Determine whether a consumer is alive, as far as the server can prove it.

A worker that keeps a liveness key registers its name: it is alive while the key exists, and dead without it. A
``QueueConsumer`` or a program of another library has neither; only ``idle`` of XINFO CONSUMERS is known of it. From
Redis 7.2 on (and in Valkey) ``idle`` counts from the last attempted read. Before, it counts from the last read that
returned entries, so a live consumer of a quiet stream is as idle as a dead one.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from conquiet.management.models import ConsumerState
from conquiet.management.redis_admin import RedisAdmin, as_bytes, display_name
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.liveness import liveness_key, registry_key
from conquiet.redis_transport.replies import ConsumerInfo, counts_attempts

ALIVE_S: Final = 60.0
"""A consumer is live if its idle time is shorter than this. A live consumer reads every few seconds."""

_MOST_NAMES: Final = 500
"""Most registered names that are read."""


class Liveness(NamedTuple):
    """Liveness data of one consumer that XINFO does not report.

    Attributes:
        has_key: Its liveness key exists; None if this user may not read it.
        registered: It keeps a liveness key while it runs.
    """

    has_key: bool | None
    registered: bool


_NEITHER: Final = Liveness(has_key=False, registered=False)


def consumer_state(
    idle_s: float, *, has_key: bool | None, counts_attempts: bool, alive_s: float = ALIVE_S, registered: bool = False
) -> ConsumerState:
    """Return the provable state of a consumer.

    Args:
        idle_s: ``idle`` of XINFO CONSUMERS, in seconds.
        has_key: Its liveness key exists; None if this user may not read it.
        counts_attempts: The server counts ``idle`` from the last attempted read.
        alive_s: See ``ALIVE_S``.
        registered: It keeps a liveness key while it runs.
    """
    if registered and has_key is False:
        return ConsumerState.DEAD
    if idle_s < alive_s:
        return ConsumerState.LIVE
    if has_key:
        return ConsumerState.IDLE
    return ConsumerState.DEAD if counts_attempts and has_key is False else ConsumerState.UNKNOWN


def server_counts_attempts(server: RedisAdmin) -> bool:
    """Return whether ``idle`` of this server counts from the last attempted read."""
    return counts_attempts(server.info("server").get("redis_version", "0"))


def key_of(stream: bytes, group: bytes, consumer: bytes) -> bytes | None:
    """Return the liveness key of a consumer; None if a name is not UTF-8: workers of conquiet have UTF-8 names."""
    try:
        return as_bytes(liveness_key(stream.decode(), group.decode(), consumer.decode()))
    except UnicodeDecodeError:
        return None


def read_liveness(server: RedisAdmin, stream: bytes, group: bytes, consumers: Sequence[ConsumerInfo]) -> list[Liveness]:
    """Return for each consumer whether its liveness key exists and whether its name is registered."""
    keys = [key_of(stream, group, one.name) for one in consumers]
    commands = [
        command
        for one, key in zip(consumers, keys, strict=True)
        if key is not None
        for command in (pack("EXISTS", key), pack("SISMEMBER", _registry(stream, group), one.name))
    ]
    replies: list[Any] = []
    if commands:
        replies = server.send(b"".join(commands), len(commands), command="EXISTS", stream=display_name(stream))
    found = iter(replies)
    return [_NEITHER if key is None else _liveness(next(found), next(found)) for key in keys]


def read_unlisted(server: RedisAdmin, stream: bytes, group: bytes, listed: Sequence[ConsumerInfo]) -> list[bytes]:
    """Return the names of live workers that XINFO CONSUMERS does not list.

    Before Redis 7.2 a worker becomes a consumer of the group with its first entry.
    """
    if key_of(stream, group, b"") is None:
        return []
    known = {one.name for one in listed}
    words = pack("SRANDMEMBER", _registry(stream, group), _MOST_NAMES)
    (names,) = server.send(words, 1, command="SRANDMEMBER", stream=display_name(stream))
    missing = [name for name in names if name not in known] if isinstance(names, list) else []
    if not missing:
        return []
    unlisted = [ConsumerInfo(name=name, pending=0, idle_ms=0) for name in missing]
    found = read_liveness(server, stream, group, unlisted)
    return [name for name, one in zip(missing, found, strict=True) if one.has_key]


def _registry(stream: bytes, group: bytes) -> str:
    return registry_key(stream.decode(), group.decode())


def _liveness(exists: Any, is_member: Any) -> Liveness:
    """Combine two replies. ``has_key`` is None if the server refused the first command."""
    return Liveness(exists == 1 if isinstance(exists, int) else None, is_member == 1)
