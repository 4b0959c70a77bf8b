"""Errors of redis-py as errors of ours. The only place that looks at a server's error text.

That text is never repeated: ``ERR unknown command 'XADD', with args beginning with: …`` quotes the
payload. What is shown is the command, the stream, the group and the error's code (its first word).
The driver's error is kept as the cause.
"""

import re

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,  # noqa: A004 - redis-py's own, which is not Python's
    ExecAbortError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from conquiet.errors import GroupMissingError, QueueError
from conquiet.kernel.redaction import printable

_REFUSALS = (ResponseError, AuthenticationError, BusyLoadingError)

# redis-py 6 and 7.0 drop the code of the errors they have a class for.
_CODES: dict[type[BaseException], str] = {
    BusyLoadingError: "LOADING",
    ExecAbortError: "EXECABORT",
    NoPermissionError: "NOPERM",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}

_CODE = re.compile(r"[A-Z][A-Z0-9]{2,15}")

# redis-py's words, 6.4 to 8.1, sync and asyncio, for a READONLY that came over Sentinel.
_DEMOTED = "The previous master is now a slave"

# The server's words, Redis 6.2 to 8 and Valkey 9. UNBLOCKED alone is not enough: CLIENT UNBLOCK and a
# failover end a blocked read with the same code, and the group may be as well as ever.
_GROUP_GONE = ("NOGROUP", "UNBLOCKED the stream key no longer exists", "no such key", "ERR no such key")


def is_group_there_already(error: ResponseError) -> bool:
    """True for the one refusal of XGROUP CREATE that is no failure."""
    return str(error).startswith("BUSYGROUP")


def translate(error: RedisError | OSError, *, stream: str, group: str, command: str, sent: bool = True) -> QueueError:
    """Return the error to raise from ``error``.

    Args:
        error: What the client library raised.
        stream: Key of the stream; empty for a command that is about none.
        group: The consumer group; empty for a command that is about none.
        command: Name of the command, for people and for ``QueueError.command``.
        sent: False if it is certain that the server did not get the command.
    """
    named = {"stream": stream, "group": group}
    place = ", ".join([f"{kind} {printable(name)!r}" for kind, name in named.items() if name])
    what = f"{command} on {place}" if place else command
    kind = _code(error)
    if not sent:
        return QueueError(
            f"{what} was not sent: no connection to the server ({kind}); check that it runs, and the client's address "
            "and password",
            stream=stream,
            group=group,
            command=command,
        )
    if _is_refusal(error):
        if str(error).startswith(_GROUP_GONE):
            return GroupMissingError(
                f"{what}: the stream or its consumer group is gone. What was pending in it is lost; "
                "create the queue anew once you know why",
                stream=stream,
                group=group,
                command=command,
            )
        advice = ". Allow its user the command and the key (ACL SETUSER)" if kind == "NOPERM" else ""
        return QueueError(
            f"{what} was refused by the server ({kind}){advice}",
            stream=stream,
            group=group,
            command=command,
        )
    return QueueError(
        f"{what} got no answer ({kind}). It was sent once and not repeated, and it may have taken effect",
        stream=stream,
        group=group,
        command=command,
        in_doubt=True,
    )


def _is_refusal(error: BaseException) -> bool:
    """True if the server answered, and answered no. redis-py makes connection errors of some of these answers.

    What an error was raised in the handling of proves nothing by itself: a caller who enqueues in the ``except`` block
    of another command's refusal gives that refusal to whatever is lost on our way. So the words are asked for too.
    """
    if isinstance(error, _REFUSALS):
        return True
    demoted = type(error) is ConnectionError and error.args == (_DEMOTED,)
    return demoted and isinstance(error.__context__, ReadOnlyError)


def _code(error: BaseException) -> str:
    """The error's code: kept apart by newer redis-py, or known by its class, else the first word, else the class."""
    known = getattr(error, "status_code", None)
    if isinstance(known, str) and _CODE.fullmatch(known):
        return known
    if type(error) in _CODES:
        return _CODES[type(error)]
    first = str(error).split(" ", 1)[0]
    return first if _CODE.fullmatch(first) else type(error).__name__
