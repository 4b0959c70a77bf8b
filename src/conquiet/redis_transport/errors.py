"""Translate redis-py's errors into ``QueueError``. The only place that reads a server's error text.

That text is never repeated: ``ERR unknown command 'XADD', with args beginning with: …`` quotes the payload. An error of
ours shows the command, the stream, the group and the error's code (its first word). The driver's error is its cause.

Other packages import redis-py's error classes from here.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    ConnectionError,  # noqa: A004 - redis-py's own, which is not Python's
    ExecAbortError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from conquiet.core.redaction import printable
from conquiet.errors import GroupMissingError, QueueError
from conquiet.redis_transport.connect_errors import NoConnection, describe, no_connection

__all__ = [
    "AbortedError",
    "NoPermissionError",
    "NoScriptError",
    "ReadOnlyError",
    "RedisError",
    "ResponseError",
    "is_aborted",
    "is_group_there_already",
    "is_redirect",
    "translate",
    "translate_errors",
]

_REDIRECTS = (AskError, TryAgainError)  # AskError includes MOVED
_REFUSALS = (ResponseError, AuthenticationError, BusyLoadingError)

# redis-py 6 and 7.0 drop the code of the errors they have a class for.
_CODES: dict[type[BaseException], str] = {
    AskError: "ASK",
    BusyLoadingError: "LOADING",
    ClusterCrossSlotError: "CROSSSLOT",
    ClusterDownError: "CLUSTERDOWN",
    MovedError: "MOVED",
    TryAgainError: "TRYAGAIN",
    ExecAbortError: "EXECABORT",
    NoPermissionError: "NOPERM",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}

# Remedies for refusals, by code.
_ADVICE = {
    "ASK": ". Its slot is in migration: pass a RedisCluster client, or add ?cluster=true to the URL",
    "CLUSTERDOWN": ". The cluster has no master for its slot: wait for the fail-over, or see redis-cli --cluster check",
    "CROSSSLOT": ". Its keys lie in several slots: give their streams one hash tag, such as {shop}:orders",
    "MOVED": ". The server is a node of a Redis Cluster: pass a RedisCluster client, or add ?cluster=true to the URL",
    "NOPERM": ". Allow its user the command and the key (ACL SETUSER)",
    "OOM": ". Its memory is full (maxmemory): remove data, or raise the limit",
    "READONLY": ". It is a replica: pass a client of the master, or of its Sentinels (master_for)",
    "TRYAGAIN": ". The migration of its slot has not ended: see redis-cli --cluster check, and --cluster fix",
    "WRONGTYPE": ". The key holds data of another type: use another name",
}

_CODE = re.compile(r"[A-Z][A-Z0-9]{2,15}")

# redis-py's text, 6.4 to 8.1, sync and asyncio, for a READONLY that came over Sentinel.
_DEMOTED = "The previous master is now a slave"

# The server's text, Redis 6.2 to 8 and Valkey 9. UNBLOCKED alone is not enough: CLIENT UNBLOCK and a failover end a
# blocked read with the same code, and the group may still exist.
_GROUP_GONE = ("NOGROUP", "UNBLOCKED the stream key no longer exists", "no such key", "ERR no such key")


class AbortedError(ConnectionError):
    """The connection was shut down by ``RedisConnection.abort``."""


def is_aborted(error: BaseException) -> bool:
    """Return whether ``RedisConnection.abort`` ended a call."""
    return isinstance(error.__cause__, AbortedError)


def is_redirect(error: BaseException) -> bool:
    """Return whether a healthy node refused a command because its slot has moved or is in migration."""
    return isinstance(error, _REDIRECTS) or isinstance(error.__cause__, _REDIRECTS)


def is_group_there_already(error: ResponseError) -> bool:
    """Return True if XGROUP CREATE was refused because the group exists, which is not a failure."""
    return str(error).startswith("BUSYGROUP")


@contextmanager
def translate_errors(command: str, *, stream: str = "", group: str = "") -> Iterator[None]:
    """Raise redis-py's errors from the body as ``QueueError``; see ``translate``."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise translate(error, stream=stream, group=group, command=command) from error


def translate(error: RedisError | OSError, *, stream: str, group: str, command: str, sent: bool = True) -> QueueError:
    """Return the error to raise, with ``error`` as its cause.

    Args:
        error: The error of the client library.
        stream: Key of the stream; empty for a command that concerns none.
        group: The consumer group; empty for a command that concerns none.
        command: Name of the command, for people and for ``QueueError.command``.
        sent: False if it is certain that the server did not get the command. If True, the error's traceback decides.
    """
    named = {"stream": stream, "group": group}
    place = ", ".join([f"{kind} {printable(name)!r}" for kind, name in named.items() if name])
    what = f"{command} on {place}" if place else command
    kind = _code(error)
    kinds: type[QueueError] = QueueError
    in_doubt = False
    missing = no_connection(error) if sent else describe(error)
    if missing is not None:
        text = _not_sent(missing, place, kind)
    elif not _is_refusal(error):
        in_doubt = True
        text = f"{what} got no answer ({kind}). It was sent once and not repeated, and it may have taken effect"
    elif str(error).startswith(_GROUP_GONE):
        kinds = GroupMissingError
        text = (
            f"{what}: the stream or its consumer group is gone. Its pending entries are lost; "
            "create the queue again once you know why"
        )
    else:
        text = f"{what} was refused by the server ({kind}){_ADVICE.get(kind, '')}"
    translated = kinds(text, stream=stream, group=group, command=command, in_doubt=in_doubt)
    translated.__cause__ = error
    return translated


def _not_sent(missing: NoConnection, place: str, kind: str) -> str:
    """Return the text for a command that did not leave this process. It does not name the command."""
    server = f"the server at {printable(missing.address)}" if missing.address else "the server"
    about = f" for {place}" if place else ""
    if missing.pool_is_full:
        return (
            f"the command{about} was not sent: every connection of the client to {server} is in use ({kind}). "
            "Send fewer commands concurrently, or give the client a larger max_connections"
        )
    reason = f"{missing.reason}, {kind}" if missing.reason else kind
    return (
        f"the command{about} was not sent: no connection to {server} ({reason}). Check that the server runs, and the "
        "client's address, user, password and database"
    )


def _is_refusal(error: BaseException) -> bool:
    """Return True if the server refused. redis-py raises some refusals as connection errors.

    ``__context__`` alone proves nothing: the caller may be inside an unrelated ``except`` block. So the text is
    compared too.
    """
    if isinstance(error, _REFUSALS):
        return True
    demoted = type(error) is ConnectionError and error.args == (_DEMOTED,)
    return demoted and isinstance(error.__context__, ReadOnlyError)


def _code(error: BaseException) -> str:
    """Return the error's code: newer redis-py keeps it, else by class, else the first word, else the class name."""
    known = getattr(error, "status_code", None)
    if isinstance(known, str) and _CODE.fullmatch(known):
        return known
    if type(error) in _CODES:
        return _CODES[type(error)]
    first = str(error).split(" ", 1)[0]
    return first if _CODE.fullmatch(first) else type(error).__name__
