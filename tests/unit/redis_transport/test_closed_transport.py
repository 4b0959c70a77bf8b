"""A transport that asyncio has closed, as Python 3.12.1 reports it."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.sentinel
import redis.exceptions

from conquiet.redis_transport.client import clone_async, clone_sync


class ClosedWriter:
    """The writer of a stream of Python 3.12.1 after the connection was lost: its transport has no loop."""

    def __init__(self) -> None:
        self.loop: Any = None

    def writelines(self, data: Iterable[bytes]) -> None:
        self.loop._add_writer(7, data)

    def close(self) -> None:
        """Called by redis-py, which gives the connection up."""


class FaultyWriter(ClosedWriter):
    """Raises another error."""

    def writelines(self, data: Iterable[bytes]) -> None:
        self.loop._send(data)


def connection_over(writer: ClosedWriter, client: redis.Redis | redis.asyncio.Redis) -> Any:
    """Return a connection of a clone that believes itself connected."""
    pool: Any = clone_async(client).connection_pool
    connection = pool.make_connection()
    connection._reader = connection._writer = writer
    assert connection.is_connected
    return connection


@pytest.mark.parametrize(
    "client",
    [
        redis.Redis(port=1),
        redis.asyncio.Redis(port=1),
        redis.asyncio.Redis(port=1, ssl=True),
        redis.asyncio.Redis(unix_socket_path="/nowhere"),
        clone_async(redis.asyncio.Redis(port=1)),
        redis.asyncio.sentinel.Sentinel([("127.0.0.1", 1)]).master_for("orders"),  # type: ignore[no-untyped-call]
    ],
    ids=["sync", "asyncio", "tls", "unix", "clone", "sentinel"],
)
async def test_a_closed_transport_is_a_lost_connection(client: redis.Redis | redis.asyncio.Redis) -> None:
    """An AttributeError would end the scheduler, the emitter and every loop that waits for a server to return."""
    connection = connection_over(ClosedWriter(), client)

    with pytest.raises(redis.exceptions.ConnectionError, match="closed the connection"):
        await connection.send_command("PING")

    assert not connection.is_connected


async def test_a_closed_transport_to_a_sentinel_is_a_lost_connection() -> None:
    sentinel: Any = redis.asyncio.sentinel.Sentinel([("127.0.0.1", 1)])  # type: ignore[no-untyped-call]
    clone: Any = clone_async(sentinel.master_for("orders"))
    asked: Any = sentinel.sentinels[0].connection_pool.make_connection()
    asked._reader = asked._writer = ClosedWriter()
    sentinel.sentinels[0].connection = asked

    with pytest.raises(redis.exceptions.ConnectionError, match="closed the connection"):
        await clone.connection_pool.make_connection().connect()
    sentinel.sentinels[0].connection = None


async def test_another_fault_of_a_writer_stays_what_it_is() -> None:
    connection = connection_over(FaultyWriter(), redis.asyncio.Redis(port=1))

    with pytest.raises(AttributeError, match="_send"):
        await connection.send_command("PING")


def test_a_clone_of_an_asyncio_clone_has_redis_pys_own_class() -> None:
    clone = clone_async(redis.asyncio.Redis(port=1, ssl=True))

    assert clone_sync(clone).connection_pool.connection_class is redis.SSLConnection
    assert len({clone_async(one).connection_pool.connection_class for one in (clone, clone_async(clone))}) == 1


class CancellingWriter(ClosedWriter):
    """Accepts a command, and the task that has sent it is cancelled in the same iteration of the event loop."""

    def __init__(self, task: "asyncio.Task[Any]") -> None:
        super().__init__()
        self._task = task
        self.is_closed = False

    def writelines(self, data: Iterable[bytes]) -> None:
        asyncio.get_running_loop().call_soon(self._task.cancel)

    async def drain(self) -> None:
        """Return immediately."""

    def close(self) -> None:
        self.is_closed = True


async def test_a_cancellation_after_a_write_is_not_swallowed() -> None:
    """Before Python 3.12 ``wait_for`` swallows it, and a log-in would wait for a server that does not reply."""
    task = asyncio.current_task()
    assert task is not None
    writer = CancellingWriter(task)
    connection = connection_over(writer, redis.asyncio.Redis(port=1, socket_timeout=5))

    with pytest.raises(asyncio.CancelledError):
        await connection.send_packed_command(b"PING", check_health=False)

    task.uncancel()
    assert writer.is_closed
    assert not connection.is_connected
