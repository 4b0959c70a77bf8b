"""Find out whether a consumer is alive, as far as the server can prove it.

A worker that keeps a liveness key registers its name: it is alive while the key exists, and dead without it. A
``QueueConsumer`` or a program of another library has neither, and ``idle`` of XINFO CONSUMERS is all that is known of
it. From Redis 7.2 on (and in Valkey) ``idle`` counts from the last attempted read. Before, it counts from the last read
that returned entries, so a live consumer of a quiet stream is as idle as a dead one.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from conquiet.management.models import ConsumerState
from conquiet.management.redis_admin import RedisAdmin, as_bytes, display_name
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.liveness import liveness_key, registry_key
from conquiet.redis_transport.replies import ConsumerInfo

ALIVE_MS: Final = 60_000
"""A consumer is live if its idle time is shorter than this. Live ones read every few seconds."""

COUNTS_ATTEMPTS_SINCE: Final = (7, 2)
"""From this version on ``idle`` counts from the last attempted read. Valkey reports 7.2 or more."""


_MOST_NAMES: Final = 500
"""Registered names that are looked at."""


class Liveness(NamedTuple):
    """What Redis has about one consumer besides XINFO.

    Attributes:
        has_key: Its liveness key exists; None if this user may not ask.
        registered: It keeps a liveness key while it lives.
    """

    has_key: bool | None
    registered: bool


_NEITHER: Final = Liveness(has_key=False, registered=False)


def consumer_state(
    idle_ms: int, *, has_key: bool | None, counts_attempts: bool, alive_ms: int = ALIVE_MS, registered: bool = False
) -> ConsumerState:
    """Decide what is known about a consumer.

    Args:
        idle_ms: ``idle`` of XINFO CONSUMERS.
        has_key: Its liveness key exists; None if this user may not ask.
        counts_attempts: The server counts ``idle`` from the last attempted read.
        alive_ms: See ``ALIVE_MS``.
        registered: It keeps a liveness key while it lives.
    """
    if registered and has_key is False:
        return ConsumerState.DEAD
    if idle_ms < alive_ms:
        return ConsumerState.LIVE
    if has_key:
        return ConsumerState.IDLE
    return ConsumerState.DEAD if counts_attempts and has_key is False else ConsumerState.UNKNOWN


def counts_attempts(server: RedisAdmin) -> bool:
    """Return whether ``idle`` of this server counts from the last attempted read."""
    version = server.info("server").get("redis_version", "0").split(".")[:2]
    return tuple(int(part) for part in version if part.isdigit()) >= COUNTS_ATTEMPTS_SINCE


def key_of(stream: bytes, group: bytes, consumer: bytes) -> bytes | None:
    """Return the liveness key of a consumer; None if a name is not UTF-8, which no worker of conquiet's has."""
    try:
        return as_bytes(liveness_key(stream.decode(), group.decode(), consumer.decode()))
    except UnicodeDecodeError:
        return None


def read_liveness(server: RedisAdmin, stream: bytes, group: bytes, consumers: Sequence[ConsumerInfo]) -> list[Liveness]:
    """Ask for each consumer whether its liveness key exists and whether its name is registered."""
    keys = [key_of(stream, group, one.name) for one in consumers]
    asked = [
        question
        for one, key in zip(consumers, keys, strict=True)
        if key is not None
        for question in (pack("EXISTS", key), pack("SISMEMBER", _registry(stream, group), one.name))
    ]
    replies: list[Any] = []
    if asked:
        replies = server.send(b"".join(asked), len(asked), command="EXISTS", stream=display_name(stream))
    found = iter(replies)
    return [_NEITHER if key is None else _liveness(next(found), next(found)) for key in keys]


def read_unlisted(server: RedisAdmin, stream: bytes, group: bytes, listed: Sequence[ConsumerInfo]) -> list[bytes]:
    """Return names of live workers that XINFO CONSUMERS does not list.

    Before Redis 7.2 a worker is no consumer of the group until it is given its first entry.
    """
    if key_of(stream, group, b"") is None:
        return []
    known = {one.name for one in listed}
    words = pack("SRANDMEMBER", _registry(stream, group), _MOST_NAMES)
    (names,) = server.send(words, 1, command="SRANDMEMBER", stream=display_name(stream))
    missing = [name for name in names if name not in known] if isinstance(names, list) else []
    if not missing:
        return []
    asked = [ConsumerInfo(name=name, pending=0, idle_ms=0) for name in missing]
    found = read_liveness(server, stream, group, asked)
    return [name for name, one in zip(missing, found, strict=True) if one.has_key]


def _registry(stream: bytes, group: bytes) -> str:
    return registry_key(stream.decode(), group.decode())


def _liveness(exists: Any, is_member: Any) -> Liveness:
    """Return what two replies say; a refusal is no answer."""
    return Liveness(exists == 1 if isinstance(exists, int) else None, is_member == 1)
