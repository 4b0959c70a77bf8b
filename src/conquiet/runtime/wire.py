"""One asyncio connection of our own: packed commands out, replies in, each sent once. Knows no stream.

redis-py opens the connection (address, TLS, log-in, Sentinel); from then on a ``ReplyLine`` reads it. Replies
come back in order, so that several commands can go out in one write and the first answers be used while the
last one still waits on the server.
"""

import asyncio
import contextlib
from typing import Any

from redis.exceptions import AskError, ClusterDownError, ReadOnlyError, RedisError, ResponseError, TryAgainError

from conquiet.kernel.cancellation import heeding_cancellation
from conquiet.queue.commands import pack
from conquiet.runtime.line import ReplyLine
from conquiet.runtime.servers import Servers

_ELSEWHERE = (ReadOnlyError,)
"""Refusals that say: not here. Over Sentinel or a moved address the right server is one new connection away."""

_ELSEWHERE_IN_A_CLUSTER = (*_ELSEWHERE, AskError, ClusterDownError, TryAgainError)  # MOVED is an AskError, too


class WireLostError(Exception):
    """The connection is gone; what was sent may have taken effect. The reason is the cause.

    Attributes:
        reason: The driver's or system's error, always of one of these two families.
    """

    def __init__(self, reason: RedisError | OSError) -> None:
        super().__init__(type(reason).__name__)
        self.reason = reason


class Wire:
    """A single connection, for one user at a time.

    Args:
        servers: Who makes connections.
        stream: One of the streams it is for; with it go all that one command can read together.
        name: What the connection is for, in metrics and logs.
    """

    def __init__(self, servers: Servers, stream: str, name: str) -> None:
        self.name = name
        self._servers = servers
        self._stream = stream
        self._connection: Any = None
        self._line: ReplyLine | None = None
        self._opening: asyncio.Task[None] | None = None
        self.is_cut = False
        self.client_id: int | None = None

    @property
    def peer(self) -> Any:
        """Address of the other end; None while there is no connection."""
        return None if self._line is None else self._line.peer

    @property
    def is_open(self) -> bool:
        """True while nothing has gone wrong since the last ``open()``."""
        return self._line is not None

    async def open(self) -> None:
        """Connect and log in.

        Raises:
            WireLostError: There is no connection to be had.
        """
        await self.close()
        if self.is_cut:
            raise _ended()
        self._opening = asyncio.create_task(self._connect(), name="conquiet-connecting")
        with heeding_cancellation():  # ours, that is, and not only that of the task we wait for
            try:
                await self._opening
            except asyncio.CancelledError:
                if self.is_cut:
                    raise _ended() from None
                raise
            finally:
                self._opening = None
        # Only to cut a waiting read short at a stop. Who is not allowed to ask waits for the slice to end.
        (number,) = await self.call([pack("CLIENT", "ID")])
        self.client_id = number if isinstance(number, int) else None

    async def _connect(self) -> None:
        connection = None
        try:
            connection = await self._servers.connection(self._stream)
            await connection.connect()
        except (RedisError, OSError) as error:
            await _quietly_close(connection)
            raise WireLostError(error) from error
        except BaseException:
            await _quietly_close(connection)
            raise
        # Here and not by who waits for us: he may be cancelled at this very turn, and it is to be closed all the same.
        self._connection, self._line = connection, ReplyLine(connection)

    def cut(self) -> None:
        """Break off whoever waits here, and let nobody wait again: from now on every call is a ``WireLostError``.

        Call it again until they are gone: up to Python 3.11 a cancellation can be swallowed on the way.
        """
        self.is_cut = True
        if self._opening is not None:
            self._opening.cancel()
        if self._line is not None:
            self._line.cut()

    async def close(self) -> None:
        """Close the connection, if there is one."""
        connection, line, self._connection, self._line = self._connection, self._line, None, None
        if line is not None:
            await line.close()
        await _quietly_close(connection)

    def send(self, packed: list[bytes]) -> None:
        """Send packed commands in one write. Each of them has a reply that must be received."""
        self._open_line().send(b"".join(packed))

    async def receive(self, count: int) -> list[Any]:
        """Return the next replies; a refusal by the server is among them as its ``ResponseError``, not raised."""
        line = self._open_line()
        try:
            replies = await line.receive(count)
            for reply in replies:
                if isinstance(reply, RedisError) and self._means_elsewhere(reply):
                    raise reply
        except BaseException as error:
            # A connection with an unread reply would give that reply to the next command.
            await self.close()
            if isinstance(error, RedisError | OSError):
                raise WireLostError(error) from error
            raise
        return replies

    async def call(self, packed: list[bytes]) -> list[Any]:
        """Send commands and return their replies, refusals among them."""
        self.send(packed)
        return await self.receive(len(packed))

    def _open_line(self) -> ReplyLine:
        if self._line is None:
            raise WireLostError(ConnectionError("the connection is closed"))
        return self._line

    def _means_elsewhere(self, reply: RedisError) -> bool:
        """True for an answer that only another connection can better. Any other refusal is the caller's."""
        if not isinstance(reply, ResponseError):
            return True
        if not self._servers.may_move:
            return isinstance(reply, _ELSEWHERE)
        # A stream that leaves for another node ends a waiting read as if it had been deleted. The next one tells.
        return isinstance(reply, _ELSEWHERE_IN_A_CLUSTER) or str(reply).startswith("UNBLOCKED")


def _ended() -> WireLostError:
    return WireLostError(ConnectionError("the engine has ended"))


async def _quietly_close(connection: Any) -> None:
    if connection is not None:
        with contextlib.suppress(RedisError, OSError):
            await connection.disconnect(nowait=True)
