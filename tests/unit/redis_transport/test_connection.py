"""Connections of a queue that broke together are not used one by one."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError

from conquiet.errors import QueueError
from conquiet.redis_transport.connection import RedisConnection
from conquiet.redis_transport.errors import is_aborted


class Connection:
    """Returns ``reply``; without one it breaks."""

    socket_timeout = 5.0
    _sock = None

    def __init__(self, reply: str | None = None, **_: Any) -> None:
        self.reply = reply
        self.is_closed = False

    def connect(self) -> None:
        self.reply = "new"

    def disconnect(self) -> None:
        self.is_closed = True

    def send_packed_command(self, *_: Any, **__: Any) -> None:
        if self.reply is None:
            raise RedisConnectionError("reset by peer")

    def read_response(self) -> str | None:
        return self.reply


def test_after_a_broken_connection_the_other_idle_ones_are_not_used() -> None:
    """They were opened to the same server: each would cost its caller a command in doubt."""
    pool = SimpleNamespace(connection_class=Connection, connection_kwargs={"socket_timeout": 5.0})
    client = cast("Any", SimpleNamespace(connection_pool=pool, close=lambda: None))
    connection = RedisConnection(client, longest_wait_s=1.0)
    idle, broken = Connection("old"), Connection()
    connection._idle.extend([(idle, time.monotonic()), (broken, time.monotonic())])

    with pytest.raises(QueueError):
        connection.call("PING", b"PING")
    answer = connection.call("PING", b"PING")

    assert answer == "new"
    assert (idle.is_closed, broken.is_closed) == (True, True)


def test_a_refusal_of_a_later_command_leaves_the_call_in_doubt() -> None:
    """A master that became a replica between the commands of one call: the first of them has taken effect."""

    class Demoted(Connection):
        def read_response(self) -> str:
            if self.reply is None:
                try:
                    raise ReadOnlyError("You can't write against a read only replica.")
                except ReadOnlyError:  # as redis-py does for a master found by Sentinel
                    raise RedisConnectionError("The previous master is now a slave")  # noqa: B904
            self.reply = None
            return "1-0"

    pool = SimpleNamespace(connection_class=Demoted, connection_kwargs={"socket_timeout": 5.0})
    connection = RedisConnection(cast("Any", SimpleNamespace(connection_pool=pool, close=lambda: None)))

    with pytest.raises(QueueError) as caught:
        connection.call_together("XADD", [b"XADD", b"SET", b"WAIT"])

    assert caught.value.in_doubt


def test_a_call_that_begins_while_an_abort_runs_counts_as_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The abort may still shut its connection down. A call after the abort fails for another reason."""

    class Broken(Connection):
        def connect(self) -> None:
            self.reply = None

    pool = SimpleNamespace(connection_class=Broken, connection_kwargs={"socket_timeout": 5.0})
    connection = RedisConnection(cast("Any", SimpleNamespace(connection_pool=pool, close=lambda: None)))
    aborted: list[bool] = []

    def acknowledge() -> None:
        with pytest.raises(QueueError) as caught:
            connection.call("XACK", b"XACK")
        aborted.append(is_aborted(caught.value))

    def close_idle() -> None:
        monkeypatch.undo()
        acknowledge()

    for _ in range(2):  # each further stop() aborts again
        monkeypatch.setattr(connection, "_close_idle", close_idle)
        connection.abort()
        acknowledge()

    assert aborted == [True, False, True, False]
