"""The asyncio connection: packed commands out, replies in, each command sent once. Knows no stream.

redis-py opens the connection (address, TLS, log-in, Sentinel); from then on a ``RedisProtocol`` reads it. Replies
arrive in order, so several commands can be sent in one write, and the first replies used while the last command still
blocks on the server.

In a Redis Cluster a slot in migration is served by two nodes: its old owner redirects commands on keys that have moved
(ASK), and these commands go to the new owner over a second connection, one by one. Any other redirect ends the
connection, and the next one leads to the owner. A redirected command has done nothing, so nothing is repeated.
"""

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

from redis.exceptions import AskError, MovedError, ReadOnlyError, RedisError, ResponseError, TryAgainError

from conquiet.core.task_cancellation import reraise_swallowed_cancellation
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.connect_errors import address_of
from conquiet.redis_transport.protocol import RedisProtocol
from conquiet.redis_transport.replies import info_fields
from conquiet.redis_transport.routing import REDIRECTS, CommandRedirects, NodeAddress
from conquiet.redis_transport.topology import Topology
from conquiet.redis_transport.worker_reports import ConnectionId

if TYPE_CHECKING:
    from collections.abc import Callable

_CLUSTER_REDIRECTS = (ReadOnlyError, *REDIRECTS)
"""Refusals by the wrong server. A new connection, through Sentinel or a changed address, reaches the right one."""

_UNBLOCKED = "UNBLOCKED"
_IN_MIGRATION = "TRYAGAIN the slot of a stream has moved while a read waited for it"
_ASKING = pack("ASKING")
_CLIENT_ID = pack("CLIENT", "ID")
_INFO = pack("INFO", "server")
_IN_MIGRATION_S = 10.0
"""Longest wait of one command while the keys of its slot are on two nodes. Then the connection is closed."""


class ConnectionLostError(Exception):
    """The connection is lost; a command that was sent may have taken effect.

    Attributes:
        reason: The driver's or system's error, always of one of these two families.
    """

    def __init__(self, reason: RedisError | OSError) -> None:
        super().__init__(type(reason).__name__)
        self.reason = reason


class AsyncRedisConnection:
    """A single connection, for one user at a time.

    Args:
        topology: Makes connections.
        stream: One of its streams; the others are on the same node.
        name: Its purpose, for metrics and logs.
        identify: Also fetch the server's run id, for ``identity``.
        on_lost: Called when an open connection has been closed, by the server too.
    """

    def __init__(
        self,
        topology: Topology,
        stream: str,
        name: str,
        *,
        identify: bool = False,
        on_lost: "Callable[[], None] | None" = None,
    ) -> None:
        self.name = name
        self._on_lost = on_lost
        self._identify = identify
        self._run_id = ""
        self._topology = topology
        self._stream = stream
        self._connection: Any = None
        self._protocol: RedisProtocol | None = None
        self._opening: asyncio.Task[None] | None = None
        self._sent: deque[bytes] = deque()  # commands without a reply yet; kept in a cluster only
        self._importing: tuple[NodeAddress, Any, RedisProtocol] | None = None
        self.is_aborted = False
        self.client_id: int | None = None
        self.address = ""

    @property
    def peer(self) -> Any:
        """Address of the other end; None while there is no connection."""
        return None if self._protocol is None else self._protocol.peer

    @property
    def is_open(self) -> bool:
        """True from ``open()`` until a failure or ``close()``."""
        return self._protocol is not None

    @property
    def identity(self) -> ConnectionId | None:
        """The run id and the client id of this connection; None while it is closed, or if the server refused them."""
        protocol = self._protocol
        if protocol is None or protocol.lost is not None or self.client_id is None or not self._run_id:
            return None
        return ConnectionId(self._run_id, self.client_id)

    async def open(self) -> None:
        """Connect and log in.

        Raises:
            ConnectionLostError: No connection could be opened.
        """
        await self.close()
        if self.is_aborted:
            raise _aborted()
        self._run_id = ""  # ``identity`` is read in another thread: never the old one's of a new connection
        self._opening = asyncio.create_task(self._connect(), name="conquiet-connecting")
        with reraise_swallowed_cancellation():  # of this task, not only of the one it waits for
            try:
                await self._opening
            except asyncio.CancelledError:
                if self.is_aborted:
                    raise _aborted() from None
                raise
            finally:
                self._opening = None
        # Used to end a blocked read at a stop. Without permission for it, the stop waits for the read to end.
        number, *info = await self.call([_CLIENT_ID, _INFO] if self._identify else [_CLIENT_ID])
        self.client_id = number if isinstance(number, int) else None
        self._run_id = info_fields(info[0]).get("run_id", "") if info and isinstance(info[0], bytes) else ""

    async def _connect(self) -> None:
        connection = None
        try:
            connection = await self._topology.connection(self._stream)
            self.address = address_of(connection)  # kept after a loss, for the log
            await connection.connect()
        except (RedisError, OSError) as error:
            await _quietly_close(connection)
            raise ConnectionLostError(error) from error
        except BaseException:
            await _quietly_close(connection)
            raise
        # Assigned here and not by the waiting open(): that may be cancelled now, and close() must still find it.
        self._connection, self._protocol = connection, RedisProtocol(connection, self._on_lost)

    def abort(self) -> None:
        """Make pending and later calls raise ``ConnectionLostError``.

        Call it until the pending calls have ended: up to Python 3.11 a cancellation can be swallowed.
        """
        self.is_aborted = True
        if self._opening is not None:
            self._opening.cancel()
        for protocol in (self._protocol, None if self._importing is None else self._importing[2]):
            if protocol is not None:
                protocol.abort()

    async def close(self) -> None:
        """Close the connection, if there is one."""
        connection, protocol, self._connection, self._protocol = self._connection, self._protocol, None, None
        self._sent.clear()
        await self._close_importing()
        if protocol is not None:
            await protocol.close()
        await _quietly_close(connection)

    def send(self, packed: list[bytes]) -> None:
        """Send packed commands in one write. The caller must receive one reply for each."""
        protocol = self._require_open()
        if self._topology.may_move:
            self._sent += packed
        protocol.send(b"".join(packed))

    async def receive(self, count: int) -> list[Any]:
        """Return the next replies; a refusal is among them as a ``ResponseError`` and not raised."""
        protocol = self._require_open()
        try:
            replies = await protocol.receive(count)
            if self._topology.may_move:
                await self._follow_migration(replies)
            for reply in replies:
                if isinstance(reply, RedisError) and self._is_redirect(reply):
                    raise TryAgainError(_IN_MIGRATION) if str(reply).startswith(_UNBLOCKED) else reply
        except BaseException as error:
            # A connection with an unread reply would give that reply to the next command.
            await self.close()
            if isinstance(error, RedisError | OSError):
                raise ConnectionLostError(error) from error
            raise
        return replies

    async def call(self, packed: list[bytes]) -> list[Any]:
        """Send commands and return their replies, refusals among them."""
        self.send(packed)
        return await self.receive(len(packed))

    async def _follow_migration(self, replies: list[Any]) -> None:
        """Replace each redirect to the importing node with that node's reply."""
        sent = [self._sent.popleft() for _ in replies]
        for place, reply in enumerate(replies):
            if isinstance(reply, AskError | TryAgainError) and not isinstance(reply, MovedError):
                replies[place] = await self._send_to_importing(sent[place], reply)

    async def _send_to_importing(self, packed: bytes, refusal: RedisError) -> Any:
        """Send a command that was refused because its slot is in migration; return the reply of the right node."""
        redirects = CommandRedirects(_IN_MIGRATION_S)
        reply: Any = refusal
        while isinstance(reply, AskError | TryAgainError) and not isinstance(reply, MovedError):
            redirect = redirects.after(reply)
            if redirect is None:
                return reply
            if self.is_aborted:
                raise ConnectionError("the engine has ended")
            await asyncio.sleep(redirect.pause_s)
            if redirect.address is not None:
                importing = await self._importing_protocol(redirect.address)
                importing.send(_ASKING + packed)
                _, reply = await importing.receive(2)
            elif self._sent:
                return reply  # replies of other commands arrive before the reply to a repeated one
            else:
                protocol = self._require_open()
                protocol.send(packed)
                (reply,) = await protocol.receive(1)
        return reply

    async def _importing_protocol(self, address: NodeAddress) -> RedisProtocol:
        if self._importing is not None and self._importing[0] == address and self._importing[2].lost is None:
            return self._importing[2]
        await self._close_importing()
        connection = await self._topology.connection(self._stream, address)
        try:
            await connection.connect()
        except BaseException:
            await _quietly_close(connection)
            raise
        protocol = RedisProtocol(connection)
        self._importing = (address, connection, protocol)
        return protocol

    async def _close_importing(self) -> None:
        importing, self._importing = self._importing, None
        if importing is not None:
            await importing[2].close()
            await _quietly_close(importing[1])

    def _require_open(self) -> RedisProtocol:
        if self._protocol is None:
            raise ConnectionLostError(ConnectionError("the connection is closed"))
        return self._protocol

    def _is_redirect(self, reply: RedisError) -> bool:
        """Return True for a refusal that only another connection can avoid. The caller handles any other."""
        if not isinstance(reply, ResponseError):
            return True
        if not self._topology.may_move:
            return isinstance(reply, ReadOnlyError)
        # A slot that moves away ends a blocked read as if its stream were deleted. The next read is redirected, or
        # refused if the stream is deleted.
        return isinstance(reply, _CLUSTER_REDIRECTS) or str(reply).startswith(_UNBLOCKED)


def _aborted() -> ConnectionLostError:
    return ConnectionLostError(ConnectionError("the engine has ended"))


async def _quietly_close(connection: Any) -> None:
    if connection is not None:
        with contextlib.suppress(RedisError, OSError):
            await connection.disconnect(nowait=True)
