"""The synchronous connection: each command is sent once, and every failure is a ``QueueError``. Knows no stream.

redis-py's connection objects do the work (address, TLS, log-in, parser). The work of its client around them on each
call is left out: packing, pool bookkeeping, a check of the socket, callbacks.

A connection is either idle and clean, or used by one call. Any failure between sending and the end of the reply closes
it: a connection with an unread reply would give that reply to the next command.
"""

import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from conquiet.core.closing import ClosedAfterUse
from conquiet.errors import LifecycleError
from conquiet.redis_transport.errors import AbortedError, translate

_TRUSTED_IDLE_S = 1.0
"""A connection that was idle for longer is checked before use: the server may have closed it."""


class RedisConnection(ClosedAfterUse):
    """A few connections to one server. Safe to use from several threads.

    Args:
        client: A clone made by ``clone_sync``. ``close()`` closes it.
        longest_wait_s: Longest intended wait of a command (BLOCK) that the clone's socket timeout covers.
    """

    def __init__(self, client: redis.Redis, *, longest_wait_s: float = 0.0) -> None:
        self.client = client  # kept alive: with Sentinel its connections refer to its pool weakly
        pool = client.connection_pool
        self._connection_class: Any = pool.connection_class
        self._settings: dict[str, Any] = pool.connection_kwargs
        self._longest_wait_s = longest_wait_s
        # deque.append and pop are atomic, so no lock is needed. The last one used is the first one taken.
        self._idle: deque[tuple[Any, float]] = deque()
        # Connections with a longer socket timeout, for waits beyond longest_wait_s.
        self._idle_long_timeout: deque[tuple[Any, float]] = deque()
        self._opened: list[Any] = []
        self._opening: list[Any] = []
        self._pid = os.getpid()
        self._closed = False
        self._aborts_begun = self._aborts_ended = 0

    def call(self, command: str, packed: bytes, *, stream: str = "", group: str = "", wait_s: float = 0.0) -> Any:
        """Send one packed command and return its reply.

        Args:
            command: Its name, for errors.
            packed: The command.
            stream: The stream it concerns, for errors.
            group: The group it concerns, for errors.
            wait_s: Time that the server may wait before it replies (BLOCK).

        Raises:
            QueueError: The server refused the command or did not get it, or its reply was lost (``in_doubt``).
        """
        return self._exchange(command, packed, None, wait_s, stream, group)

    def pipeline(self, command: str, packed: bytes, replies: int, *, stream: str = "", group: str = "") -> list[Any]:
        """Send several packed commands in one write and return their replies; refusals are among them."""
        answers: list[Any] = self._exchange(command, packed, replies, 0.0, stream, group)
        return answers

    def call_together(
        self, command: str, packed: Sequence[bytes], *, stream: str = "", group: str = "", wait_s: float = 0.0
    ) -> list[Any]:
        """Send several commands on one connection and return their replies; refusals are among them.

        ``wait_s``: time that the server may wait before it replies to the last one.
        """
        answers: list[Any] = self._exchange(command, b"".join(packed), len(packed), wait_s, stream, group)
        return answers

    def close(self) -> None:
        """Close every connection. A connection in use is closed when its call ends."""
        self._closed = True
        self._close_idle()
        self.client.close()

    def abort(self) -> None:
        """Make every call that waits for a reply fail immediately, and every later call that lets the server wait.

        A wait for the reply to a log-in fails too. A wait for TCP ends by its timeout.

        Other calls open a new connection: the acknowledgement of a handler that could not be interrupted is still
        sent. Takes no lock, so a signal handler may call it.
        """
        self._aborts_begun += 1
        self._close_idle()
        for connection in (*self._opening, *self._opened):
            _shut_down(connection)
        self._aborts_ended = self._aborts_begun

    def _exchange(
        self, command: str, packed: bytes, replies: int | None, wait_s: float, stream: str, group: str
    ) -> Any:
        idle = self._idle if wait_s <= self._longest_wait_s else self._idle_long_timeout
        connection = None
        aborts = 0 if wait_s else self._aborts_ended  # while abort() runs, it may still shut this call down
        try:
            connection = self._take(idle, wait_s)
            connection.send_packed_command((packed,), check_health=False)
            reply = connection.read_response() if replies is None else _read_all(connection, replies)
        except ResponseError as error:
            if connection is not None:
                self._put_back(idle, connection, [error])
            raise translate(error, stream=stream, group=group, command=command, sent=connection is not None) from error
        except BaseException as error:
            if connection is not None:
                self._discard(connection)
            if isinstance(error, RedisError | OSError):
                sent = connection is not None
                if self._aborts_begun > aborts:
                    # The traceback tells whether the command was sent.
                    error = AbortedError("aborted by a forced stop").with_traceback(error.__traceback__)
                raise translate(error, stream=stream, group=group, command=command, sent=sent) from error
            raise
        self._put_back(idle, connection, () if replies is None else reply)
        return reply

    def _require_open(self) -> None:
        if self._closed:
            raise LifecycleError("the queue is closed; create a new one")

    def _take(self, idle: deque[tuple[Any, float]], wait_s: float) -> Any:
        self._require_open()
        if self._pid != os.getpid():
            # After a fork the sockets belong to the parent too: two processes would read each other's replies.
            self._pid = os.getpid()
            self._close_idle()
        while True:
            try:
                connection, since = idle.pop()
            except IndexError:
                return self._open(wait_s)
            # All of the others were opened with the same timeout.
            if _usable(connection, since) and (idle is self._idle or self._covers(connection, wait_s)):
                return connection
            connection.disconnect()

    def _open(self, wait_s: float) -> Any:
        settings = self._settings
        extra_s = wait_s - self._longest_wait_s
        if extra_s > 0:
            settings = {**settings, "socket_timeout": settings["socket_timeout"] + extra_s}
        connection = self._connection_class(**settings)
        self._opening.append(connection)
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        finally:
            self._opening.remove(connection)
        for one in list(self._opened):
            if one._sock is None:  # noqa: SLF001 - as in _shut_down
                with contextlib.suppress(ValueError):  # another thread has removed it
                    self._opened.remove(one)
        self._opened.append(connection)
        if self._aborts_begun and wait_s:  # checked after the append, so that abort() cannot miss it
            _shut_down(connection)
        return connection

    def _covers(self, connection: Any, wait_s: float) -> bool:
        needed: float = self._settings["socket_timeout"] + max(0.0, wait_s - self._longest_wait_s)
        return bool(connection.socket_timeout >= needed)

    def _put_back(self, idle: deque[tuple[Any, float]], connection: Any, replies: Sequence[Any]) -> None:
        if self._aborts_begun or (replies and ReadOnlyError in map(type, replies)):
            # abort() may have shut it down. Or it leads to a replica, and its address to a new master by now.
            self._discard(connection)
            return
        idle.append((connection, time.monotonic()))
        if self._closed or self._aborts_begun:  # during the call; checked after the append, so that none can be missed
            self._close_idle()

    def _discard(self, connection: Any) -> None:
        """Close a connection, and the idle ones: they were opened to the same server and are likely as useless."""
        connection.disconnect()
        self._close_idle()

    def _close_idle(self) -> None:
        for idle in (self._idle, self._idle_long_timeout):
            with contextlib.suppress(IndexError):
                while True:
                    idle.pop()[0].disconnect()


def _shut_down(connection: Any) -> None:
    """Shut the socket down: a thread that waits for it reads the end of input. Not closed: its number may be reused."""
    opened: socket.socket | None = connection._sock  # noqa: SLF001 - redis-py has no public name for it
    if opened is not None and connection.pid == os.getpid():  # after a fork, the other process still uses its socket
        with contextlib.suppress(OSError):
            # Call the method of the plain socket: a TLS socket's method changes objects that the waiting thread uses.
            socket.socket.shutdown(opened, socket.SHUT_RDWR)


def _usable(connection: Any, since: float) -> bool:
    """Return False if the server closed the connection (or sent something unrequested) while it was idle."""
    if time.monotonic() - since < _TRUSTED_IDLE_S:
        return True
    try:
        return not connection.can_read(0)
    except (RedisError, OSError):
        return False


def _read_all(connection: Any, replies: int) -> list[Any]:
    answers: list[Any] = []
    for _ in range(replies):
        try:
            answers.append(connection.read_response())
        except ResponseError as error:  # one refusal; the replies behind it still have to be read
            answers.append(error)
        except (RedisError, OSError) as error:
            if not answers:
                raise
            # Some refusals are raised as connection errors. This one concerns a later command: the earlier ones ran.
            raise RedisConnectionError("a later reply was lost") from error
    return answers
