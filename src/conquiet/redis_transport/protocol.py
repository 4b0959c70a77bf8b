"""The asyncio protocol of a connection: bytes in, replies out, in order. Knows no command.

redis-py opens the connection (address, TLS, log-in, Sentinel); then this protocol takes over its transport. Bytes go
straight into hiredis, without the stream, the lock and the timer that redis-py puts around every read: a third of the
cost of a message. Connections use RESP2, so the server sends nothing unasked.
"""

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

import hiredis
import redis.exceptions

if TYPE_CHECKING:
    from collections.abc import Callable

_INCOMPLETE = object()
_TIMEOUT_CHECKS = 3
"""Consecutive checks without data before a timeout. One is not enough: the loop may have been blocked, and some loops
(libuv before 1.45) run timers before they read the bytes that have arrived."""


class RedisProtocol(asyncio.Protocol):
    """Turns received bytes into replies, for one reader at a time.

    Args:
        connection: An open connection of redis-py's. The protocol takes over its transport.
        on_lost: Called when the connection has been closed, by the server too.
    """

    def __init__(self, connection: Any, on_lost: "Callable[[], None] | None" = None) -> None:
        self._transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001 - the only access to redis-py's internals
        self._parser = hiredis.Reader(
            protocolError=redis.exceptions.InvalidResponse,
            replyError=connection._parser.parse_error,  # noqa: SLF001
            notEnoughData=_INCOMPLETE,
        )
        self._check_every_s: float = connection.socket_timeout / (_TIMEOUT_CHECKS - 1)
        self._loop = asyncio.get_running_loop()
        self._replies: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._silent_checks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self.lost: redis.exceptions.RedisError | OSError | None = None
        self._on_lost = on_lost
        self.peer = self._transport.get_extra_info("peername")
        self._transport.set_protocol(self)
        if self._transport.is_closing() or connection._reader.at_eof():  # noqa: SLF001
            self.connection_lost(None)  # asyncio has notified redis-py's protocol, and does not notify this one

    def send(self, packed: bytes) -> None:
        """Write without waiting: at most one round of commands is unsent at a time.

        On a closed connection nothing is written, and ``receive`` raises.
        """
        if not self._transport.is_closing():
            self._transport.write(packed)

    async def receive(self, count: int) -> list[Any]:
        """Return the next ``count`` replies; refusals are among them as exceptions.

        Raises:
            RedisError: The connection was closed, no data arrived within its socket timeout, or the data is not a valid
                reply.
            OSError: The connection broke.
        """
        replies = self._replies
        while len(replies) < count:
            if self.lost is not None:
                raise self.lost
            self._waiter = self._loop.create_future()
            self._silent_checks = 0
            if self._timer is None:
                self._timer = self._loop.call_later(self._check_every_s, self._check_timeout)
            try:
                await self._waiter
            finally:
                self._waiter = None
        return [replies.popleft() for _ in range(count)]

    async def close(self) -> None:
        """Abort the connection and wait until it is closed, so that the caller may close the loop next.

        Unsent bytes and the TLS shutdown are dropped: the caller has received its replies.
        """
        self.abort()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), 1.0)

    def abort(self) -> None:
        """Close the connection without waiting. A pending ``receive`` raises at the next iteration of the loop."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self._silent_checks = 0
        replies, gets = self._replies, self._parser.gets
        try:
            self._parser.feed(data)
            while (reply := gets()) is not _INCOMPLETE:
                replies.append(reply)
        except redis.exceptions.InvalidResponse as error:
            self._fail(error)
        if replies:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()
        closed = redis.exceptions.ConnectionError("the server closed the connection")
        self._fail(exc if isinstance(exc, OSError) else closed)
        if self._on_lost is not None:
            self._on_lost()

    def _check_timeout(self) -> None:
        """Fail the pending ``receive`` if no data has come for the whole timeout."""
        self._timer = None
        if self._waiter is None:
            return
        self._silent_checks += 1
        if self._silent_checks >= _TIMEOUT_CHECKS:
            self._fail(redis.exceptions.TimeoutError("no reply in time"))
        else:
            self._timer = self._loop.call_later(self._check_every_s, self._check_timeout)

    def _fail(self, error: redis.exceptions.RedisError | OSError) -> None:
        if self.lost is None:
            self.lost = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
