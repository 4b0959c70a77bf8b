"""Commands out, replies in: once, on connections of our own. Knows no stream.

redis-py's connection objects do the work (address, TLS, log-in, parser). What is left out is what
its client does around them on each call: packing, pool bookkeeping, a look at the socket, callbacks.

A connection is either idle and clean, or in the hands of one call. Whatever goes wrong between
sending and the end of the reply closes it: a connection with an unread reply would give that reply
to the next command.
"""

import contextlib
import os
import time
from collections import deque
from typing import Any

import redis
from redis.exceptions import RedisError, ResponseError

from conquiet.errors import LifecycleError

# Idle for longer than this, a connection is looked at before it is used: the server may have closed it.
_TRUSTED_IDLE_S = 1.0


class NotSentError(Exception):
    """There was no connection; the command did not leave this process."""

    def __init__(self, reason: RedisError | OSError) -> None:
        super().__init__(type(reason).__name__)
        self.reason = reason


class Wire:
    """A few connections to one server. Safe to use from several threads.

    Args:
        client: A clone made by ``clone_sync``; it is ours, and ``close()`` closes it.
        longest_wait_s: Time the server may take on purpose (BLOCK) that the clone's socket timeout covers.
    """

    def __init__(self, client: redis.Redis, *, longest_wait_s: float) -> None:
        self._client = client  # kept alive: with Sentinel its connections point back at its pool weakly
        pool = client.connection_pool
        self._connection_class: Any = pool.connection_class
        self._settings: dict[str, Any] = pool.connection_kwargs
        self._longest_wait_s = longest_wait_s
        # deque.append and pop are atomic, so no lock is needed. The last one used is the first one taken.
        self._idle: deque[tuple[Any, float]] = deque()
        # Connections with a longer socket timeout, for who waits longer than usual.
        self._patient: deque[tuple[Any, float]] = deque()
        self._pid = os.getpid()
        self._closed = False

    def call(self, packed: bytes, *, wait_s: float = 0.0) -> Any:
        """Send one packed command and return its reply.

        Args:
            packed: The command.
            wait_s: How long the server was told to wait before it answers.

        Raises:
            ResponseError: The server refused it.
            NotSentError: No connection could be had.
            RedisError: The reply was lost; the command may have taken effect.
        """
        return self._exchange(packed, None, wait_s)

    def pipeline(self, packed: bytes, replies: int) -> list[Any]:
        """Send several packed commands at once and return their replies; refusals are among them."""
        answers: list[Any] = self._exchange(packed, replies, 0.0)
        return answers

    def close(self) -> None:
        """Close every connection. One that is in use is closed when its call ends."""
        self._closed = True
        self._forget()
        self._client.close()

    def _exchange(self, packed: bytes, replies: int | None, wait_s: float) -> Any:
        idle = self._idle if wait_s <= self._longest_wait_s else self._patient
        connection = self._take(idle, wait_s)
        try:
            connection.send_packed_command((packed,), check_health=False)
            reply = connection.read_response() if replies is None else _read_all(connection, replies)
        except ResponseError:
            self._give_back(idle, connection)
            raise
        except BaseException:
            connection.disconnect()
            # The others were opened to the same server and are likely as dead.
            self._forget()
            raise
        self._give_back(idle, connection)
        return reply

    def _take(self, idle: deque[tuple[Any, float]], wait_s: float) -> Any:
        if self._closed:
            raise LifecycleError("the queue is closed; create a new one")
        if self._pid != os.getpid():
            # After a fork the sockets belong to the parent too: two processes would read each other's replies.
            self._pid = os.getpid()
            self._forget()
        with contextlib.suppress(IndexError):
            while True:
                connection, since = idle.pop()
                if _usable(connection, since) and self._covers(connection, wait_s):
                    return connection
                connection.disconnect()
        return self._open(wait_s)

    def _open(self, wait_s: float) -> Any:
        settings = self._settings
        extra_s = wait_s - self._longest_wait_s
        if extra_s > 0:
            settings = {**settings, "socket_timeout": settings["socket_timeout"] + extra_s}
        connection = self._connection_class(**settings)
        try:
            connection.connect()
        except (RedisError, OSError) as error:
            connection.disconnect()
            raise NotSentError(error) from error
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def _covers(self, connection: Any, wait_s: float) -> bool:
        needed: float = self._settings["socket_timeout"] + max(0.0, wait_s - self._longest_wait_s)
        return bool(connection.socket_timeout >= needed)

    def _give_back(self, idle: deque[tuple[Any, float]], connection: Any) -> None:
        idle.append((connection, time.monotonic()))
        if self._closed:  # closed while the call ran; looked at afterwards, so that close() cannot miss it
            self._forget()

    def _forget(self) -> None:
        for idle in (self._idle, self._patient):
            with contextlib.suppress(IndexError):
                while True:
                    idle.pop()[0].disconnect()


def _usable(connection: Any, since: float) -> bool:
    """False if the server closed the connection (or said something unasked) while it was idle."""
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
    return answers
