"""The receiving end of a connection: bytes in, replies out, in order. Knows no command.

redis-py makes the connection (address, TLS, log-in, Sentinel) and then hands its transport over. From there
on bytes go straight into hiredis, without the stream, the lock and the timer that redis-py puts around every
read: that is a third of the cost of a message. Our connections speak RESP2, so that nothing comes unasked.
"""

import asyncio
import contextlib
from collections import deque
from typing import Any

import hiredis
import redis.exceptions

_NOT_YET = object()
_LOOKS = 3
"""So many looks in a row must have found silence. One is not enough: the loop may have been blocked, and there are
loops (libuv before 1.45) whose timers run before the bytes that have arrived meanwhile are read."""


class ReplyLine(asyncio.Protocol):
    """Turns what arrives on a transport into replies, for one reader at a time.

    Args:
        connection: An open connection of redis-py's. Its transport is ours from now on.
    """

    def __init__(self, connection: Any) -> None:
        self._transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001 - the one seam to redis-py
        self._parser = hiredis.Reader(
            protocolError=redis.exceptions.InvalidResponse,
            replyError=connection._parser.parse_error,  # noqa: SLF001
            notEnoughData=_NOT_YET,
        )
        self._look_every_s: float = connection.socket_timeout / (_LOOKS - 1)
        self._loop = asyncio.get_running_loop()
        self._replies: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self.lost: redis.exceptions.RedisError | OSError | None = None
        self.peer = self._transport.get_extra_info("peername")
        self._transport.set_protocol(self)
        if self._transport.is_closing() or connection._reader.at_eof():  # noqa: SLF001
            self.connection_lost(None)  # it was told to redis-py, and will not be told again

    def send(self, packed: bytes) -> None:
        """Write. Not waited for: there is never more on its way than one round of commands.

        On a connection that has ended nothing is written; ``receive`` tells.
        """
        if not self._transport.is_closing():
            self._transport.write(packed)

    async def receive(self, count: int) -> list[Any]:
        """Return the next ``count`` replies; refusals are among them as exceptions.

        Raises:
            RedisError: The connection ended, or nothing came for as long as its socket timeout, or no reply at all
                can be made of what came.
            OSError: The connection broke.
        """
        replies = self._replies
        while len(replies) < count:
            if self.lost is not None:
                raise self.lost
            self._waiter = self._loop.create_future()
            self._looks = 0
            if self._timer is None:
                self._timer = self._loop.call_later(self._look_every_s, self._look)
            try:
                await self._waiter
            finally:
                self._waiter = None
        return [replies.popleft() for _ in range(count)]

    async def close(self) -> None:
        """End the connection and return when it has ended: a loop that closes right after leaves nothing behind.

        Nothing is waited for: no farewell of TLS, and no bytes unsent; whoever closes has had the replies it wanted.
        """
        self.cut()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), 1.0)

    def cut(self) -> None:
        """End the connection and wait for nothing. Whoever waits for a reply is told at the next turn of the loop."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self._looks = 0
        replies, gets = self._replies, self._parser.gets
        try:
            self._parser.feed(data)
            while (reply := gets()) is not _NOT_YET:
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

    def _look(self) -> None:
        """Give the connection up if nothing has come in all this time although a reply is due."""
        self._timer = None
        if self._waiter is None:
            return
        self._looks += 1
        if self._looks >= _LOOKS:
            self._fail(redis.exceptions.TimeoutError("no reply in time"))
        else:
            self._timer = self._loop.call_later(self._look_every_s, self._look)

    def _fail(self, error: redis.exceptions.RedisError | OSError) -> None:
        if self.lost is None:
            self.lost = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
