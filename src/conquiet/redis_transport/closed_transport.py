"""Report a connection that the server has closed as redis-py's ``ConnectionError`` on every event loop.

redis-py's asyncio connections write with ``writelines``. Once the transport is closed, that raises

    RuntimeError       on uvloop
    AttributeError     in some releases of Python 3.12 (3.12.1 for one): the transport no longer has its event loop, and
                       still tries to wait for the socket

redis-py passes these errors on, and an outage of the server would look like a fault of the program. Nothing has been
written then. But the error is raised from the same place as the error of a lost reply, so the caller treats it as a
lost reply.

A second fault is corrected at the same place: up to Python 3.11 a cancellation is swallowed if it arrives when a
command has just been written (``core.task_cancellation``). The log-in of a new connection would then wait for replies
that may never come, although a forced stop has cancelled it.
"""

import asyncio
import functools
from typing import Any, ClassVar

import redis.exceptions

from conquiet.core.task_cancellation import reraise_swallowed_cancellation

_WAITS_FOR_THE_SOCKET = "_add_writer"
_UVLOOP = "the handler is closed"


class ReportsClosedTransport:
    """Mixed into an asyncio connection class of redis-py's.

    Attributes:
        plain_class: The class without this one.
    """

    plain_class: ClassVar[type]

    async def connect(self, *args: Any, **kwargs: Any) -> Any:
        """See redis-py. Queries a Sentinel, over a connection that may have been closed."""
        try:
            return await super().connect(*args, **kwargs)  # type: ignore[misc]
        except (AttributeError, RuntimeError) as error:
            if not _is_closed_transport(error):
                raise
            raise _closed() from error

    async def send_packed_command(self, *args: Any, **kwargs: Any) -> Any:
        """See redis-py. As there, a cancelled write closes the connection, because its reply will not be read."""
        try:
            with reraise_swallowed_cancellation():
                return await super().send_packed_command(*args, **kwargs)  # type: ignore[misc]
        except asyncio.CancelledError:
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
            raise
        except (AttributeError, RuntimeError) as error:
            if not _is_closed_transport(error):
                raise
            raise _closed() from error


@functools.cache
def reporting_closed_transport(plain: type) -> type:
    """Return this asyncio connection class with ``ReportsClosedTransport`` mixed in."""
    return type(plain.__name__, (ReportsClosedTransport, plain), {"plain_class": plain, "__module__": __name__})


def plain_class(connection_class: type) -> type:
    """Return a connection class as the caller gave it."""
    return connection_class.plain_class if issubclass(connection_class, ReportsClosedTransport) else connection_class


def _is_closed_transport(error: AttributeError | RuntimeError) -> bool:
    """Return False for any other error of these classes: that is a fault of a program."""
    if isinstance(error, RuntimeError):
        return str(error).endswith(_UVLOOP)
    return error.name == _WAITS_FOR_THE_SOCKET and error.obj is None


def _closed() -> redis.exceptions.ConnectionError:
    return redis.exceptions.ConnectionError("the server closed the connection")
