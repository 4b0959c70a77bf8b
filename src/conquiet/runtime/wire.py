"""One asyncio connection of our own: packed commands out, replies in, each sent once. Knows no stream.

redis-py's connection object does the work (address, TLS, log-in, Sentinel, parser). What is left out is
what its client does around every call. Replies come back in order, so that several commands can go out
in one write and the first answers be used while the last one still waits on the server.
"""

import contextlib
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from conquiet.queue.commands import pack


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
        client: A clone made by ``clone_async``. It stays the caller's.
        name: What the connection is for, in metrics and logs.
    """

    def __init__(self, client: redis.asyncio.Redis, name: str) -> None:
        self.name = name
        self._pool: Any = client.connection_pool
        self._connection: Any = None
        self.client_id: int | None = None

    @property
    def is_open(self) -> bool:
        """True while nothing has gone wrong since the last ``open()``."""
        return self._connection is not None

    async def open(self) -> None:
        """Connect and log in.

        Raises:
            WireLostError: There is no connection to be had.
        """
        await self.close()
        connection = None
        try:
            connection = self._pool.make_connection()
            await connection.connect()
        except (RedisError, OSError) as error:
            await _quietly_close(connection)
            raise WireLostError(error) from error
        except BaseException:
            await _quietly_close(connection)
            raise
        self._connection = connection
        # Only to cut a waiting read short at a stop. Who is not allowed to ask waits for the slice to end.
        (number,) = await self.call([pack("CLIENT", "ID")])
        self.client_id = number if isinstance(number, int) else None

    async def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        await _quietly_close(connection)

    async def send(self, packed: list[bytes]) -> None:
        """Send packed commands in one write. Each of them has a reply that must be received."""
        connection = self._connection
        if connection is None:
            raise WireLostError(ConnectionError("the connection is closed"))
        try:
            await connection.send_packed_command(packed, check_health=False)
        except BaseException as error:
            await self._broken(error)
            raise

    async def receive(self) -> Any:
        """Return the next reply; a refusal by the server is returned as its ``ResponseError``, not raised."""
        connection = self._connection
        if connection is None:
            raise WireLostError(ConnectionError("the connection is closed"))
        try:
            return await connection.read_response()
        except ResponseError as error:
            return error
        except BaseException as error:
            await self._broken(error)
            raise

    async def call(self, packed: list[bytes]) -> list[Any]:
        """Send commands and return their replies, refusals among them."""
        await self.send(packed)
        return [await self.receive() for _ in packed]

    async def _broken(self, error: BaseException) -> None:
        # A connection with an unread reply would give that reply to the next command.
        await self.close()
        if isinstance(error, RedisError | OSError):
            raise WireLostError(error) from error


async def _quietly_close(connection: Any) -> None:
    if connection is not None:
        with contextlib.suppress(RedisError, OSError):
            await connection.disconnect(nowait=True)
