"""Decide whether redis-py raised an error before it sent the command, and name the server.

redis-py raises the same classes for a connection that was never made and for a reply that was lost. The text differs
between its versions; the place where the error was raised does not: an error out of ``connect`` or out of the pool was
raised before the command was written. So this module reads the traceback and no text.

    connect, get_connection                nothing was sent
    the same inside a retried command      unknown: an earlier attempt may have been sent
    anywhere else                          unknown
"""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from redis.exceptions import RedisError

try:
    from redis.exceptions import MaxConnectionsError
except ImportError:  # redis-py 6: its pool raises ConnectionError
    MaxConnectionsError = ()  # type: ignore[assignment, misc]

_BEFORE_SENDING = frozenset({
    "connect", "ensure_connection", "get_available_connection", "get_connection", "make_connection",
})  # fmt: skip
_RETRYING = "call_with_retry"

# Texts for errors of the system. Nothing else of such an error is shown.
_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (socket.gaierror, "the host name is not known"),
    (ConnectionRefusedError, "connection refused"),
    (FileNotFoundError, "there is no such socket"),
    (PermissionError, "the system does not permit it"),
    (TimeoutError, "no answer in time"),
)


@dataclass(frozen=True, slots=True)
class NoConnection:
    """A connection that could not be opened, or that the pool could not provide.

    Attributes:
        address: ``host:port``, the path of a Unix socket, or the name of the Sentinels' master; empty if it is not
            known. Never a credential.
        reason: A text from a closed list; empty if there is none for the error.
        pool_is_full: True if the client's pool had no free connection; nothing was sent.
    """

    address: str = ""
    reason: str = ""
    pool_is_full: bool = False


def no_connection(error: BaseException) -> NoConnection | None:
    """Return the facts of the failed connection; None if the command may have been sent."""
    retried = False
    for frame in _redis_frames(error):
        name = frame.f_code.co_name
        if name in _BEFORE_SENDING:
            return None if retried else describe(error)
        if name == _RETRYING:
            retried = getattr(frame.f_locals.get("self"), "_retries", 1) != 0
    # A pool other than redis-py's has no such frames: the class is enough.
    return describe(error) if isinstance(error, MaxConnectionsError) else None


def describe(error: BaseException) -> NoConnection:
    """Return the facts of a connection that the caller knows was not opened."""
    address = ""
    full = isinstance(error, MaxConnectionsError)
    innermost = ""
    for frame in _redis_frames(error):
        if frame.f_code.co_name in _BEFORE_SENDING:
            innermost = frame.f_code.co_name
            address = address_of(frame.f_locals.get("self")) or address
    full = full or innermost in {"get_available_connection", "make_connection"}
    return NoConnection(address, "" if full else _reason(error), full)


def _redis_frames(error: BaseException) -> Iterator[FrameType]:
    """Yield redis-py's frames of the error's traceback, the outermost first."""
    step = error.__traceback__
    while step is not None:
        if str(step.tb_frame.f_globals.get("__name__", "")).startswith("redis."):
            yield step.tb_frame
        step = step.tb_next


def address_of(owner: Any) -> str:
    """Return the address of a connection or of a pool; empty if it is not known. Never a credential."""
    settings: dict[str, Any] = getattr(owner, "connection_kwargs", None) or {}
    path = getattr(owner, "path", None) or settings.get("path")
    if isinstance(path, str):
        return path
    host = getattr(owner, "host", None) or settings.get("host")
    port = getattr(owner, "port", None) or settings.get("port")
    pool = getattr(owner, "connection_pool", owner)
    service = getattr(pool, "service_name", None)
    if isinstance(service, str) and getattr(owner, "host", None) in {None, "localhost"}:
        return f"the master {service!r} of its Sentinels"
    if not isinstance(host, str) or not host:
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: BaseException) -> str:
    seen: BaseException | None = error
    for _ in range(3):
        for kind, words in _REASONS:
            if isinstance(seen, kind):
                return words
        if seen is None or not (isinstance(seen, RedisError) or seen is error):
            break
        seen = seen.__cause__ or seen.__context__
    return ""
