"""Find out whether a worker failed because a server could not be reached: then the supervisor waits for it."""

import errno
import re
import socket
from collections.abc import Iterator
from typing import Final

from conquiet.app.server_wait import REDIS_TRANSIENT
from conquiet.errors import RabbitConnectionError, ServerUnreachableError

_ERRNOS: Final = frozenset({
    errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOENT, errno.ETIMEDOUT,
})  # fmt: skip
_ADDRESS: Final = re.compile(r"connect(?:ing)? to (\S+?)\.? |to MySQL server on '([^']+)'")
_RABBIT: Final = re.compile(r"RabbitMQ at (\S+?)(?:: | within |$)")


def unreachable_server(error: BaseException) -> str | None:
    """Return which server could not be reached, e.g. "Redis at 127.0.0.1:6379"; None for any other failure.

    A server that replies with a refusal (a wrong password, no rights) was reached.
    """
    if isinstance(error, ServerUnreachableError):
        return error.server
    chain = list(_causes(error))
    if not any(_is_connection_failure(one) for one in chain):
        return None
    for one in chain:
        if isinstance(one, RabbitConnectionError):
            found = _RABBIT.search(str(one))
            return f"RabbitMQ at {found[1]}" if found else "RabbitMQ"
    for one in chain:
        found = _ADDRESS.search(f"{one} ")
        if found and _is_redis(one):
            return f"Redis at {found[1]}"
        if found and found[2]:
            return f"the database at {found[2]}"
    return "Redis" if any(_is_redis(one) for one in chain) else "a server"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_redis(error: BaseException) -> bool:
    return type(error).__module__.startswith("redis.")


def _is_connection_failure(error: BaseException) -> bool:
    if _is_redis(error):
        return type(error).__name__ in REDIS_TRANSIENT
    if isinstance(error, socket.gaierror | TimeoutError):
        return True
    return isinstance(error, OSError) and error.errno in _ERRNOS
