import asyncio
import logging
import socket
from typing import Any

import pytest
from sqlalchemy import create_engine
from tests.tcp_servers import serving

from conquiet.app import App, AppSettings
from conquiet.app.server_wait import ServerCheck, check_database, check_rabbit, check_redis, wait_for_servers
from conquiet.app.settings import redis_client
from conquiet.cli.worker.reachability import unreachable_server
from conquiet.errors import ServerUnreachableError


class Late:
    """A server that replies at the given attempt."""

    def __init__(self, answers_at: int) -> None:
        self.checked = 0
        self._answers_at = answers_at

    async def reply(self) -> Exception | None:
        self.checked += 1
        return ConnectionRefusedError() if self.checked < self._answers_at else None


def unused_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def test_a_late_server_is_waited_for_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    server = Late(4)
    with caplog.at_level(logging.INFO):
        await wait_for_servers([ServerCheck("Redis at h:1", server.reply)], 60.0, lambda: False)

    assert server.checked == 4
    first, second = [record.getMessage() for record in caplog.records]
    assert first == "Redis at h:1 cannot be reached (ConnectionRefusedError); waiting up to 60 s for it"
    assert second.startswith("Redis at h:1 is available after ")


async def test_a_server_that_never_comes_is_an_error_that_names_it() -> None:
    with pytest.raises(ServerUnreachableError, match=r"Redis at h:1 could not be reached within 0\.1 s") as failed:
        await wait_for_servers([ServerCheck("Redis at h:1", Late(10_000).reply)], 0.1, lambda: False)

    assert failed.value.server == "Redis at h:1"
    assert unreachable_server(failed.value) == "Redis at h:1"


class Silent:
    """A server that accepts and never replies."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def reply(self) -> Exception | None:
        self.asked.set()
        await asyncio.Event().wait()
        return None


async def test_a_stop_ends_a_check_of_a_silent_server() -> None:
    server, stopping = Silent(), asyncio.Event()
    checks = [ServerCheck("Redis", server.reply)]
    waiting = asyncio.create_task(wait_for_servers(checks, 60.0, stopping.is_set))
    await server.asked.wait()

    stopping.set()

    await asyncio.wait_for(waiting, 5)


async def test_a_silent_server_is_waited_for_no_longer_than_an_absent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conquiet.app.server_wait._CONNECT_S", 0.05)
    checks = [ServerCheck("Redis", Silent().reply)]

    with pytest.raises(ServerUnreachableError, match=r"within 0\.1 s \(TimeoutError\)"):
        await asyncio.wait_for(wait_for_servers(checks, 0.1, lambda: False), 30)


async def test_without_a_wait_each_server_is_checked_once() -> None:
    server = Late(2)

    with pytest.raises(ServerUnreachableError):
        await wait_for_servers([ServerCheck("Redis", server.reply)], 0.0, lambda: False)

    assert server.checked == 1


async def test_a_stop_ends_the_wait() -> None:
    server = Late(10_000)

    await wait_for_servers([ServerCheck("Redis", server.reply)], 600.0, lambda: server.checked >= 2)

    assert server.checked == 2


@pytest.mark.parametrize("kind", ["redis", "mysql", "postgres", "rabbit"])
async def test_each_server_that_does_not_run_is_not_up_yet(kind: str) -> None:
    port = unused_port()
    checks: dict[str, Any] = {
        "redis": lambda: check_redis(redis_client(f"redis://:secret@127.0.0.1:{port}/0")),
        "mysql": lambda: check_database(create_engine(f"mysql+pymysql://root:secret@127.0.0.1:{port}/shop")),
        "postgres": lambda: check_database(create_engine(f"postgresql+psycopg://u:secret@127.0.0.1:{port}/shop")),
        "rabbit": lambda: check_rabbit(f"amqp://u:secret@127.0.0.1:{port}/"),
    }
    check: ServerCheck = checks[kind]()

    assert await check.run() is not None
    assert f"127.0.0.1:{port}" in check.server
    assert "secret" not in check.server


async def test_an_app_says_which_server_it_waited_for() -> None:
    port = unused_port()
    app = App("shop", redis=f"redis://127.0.0.1:{port}/0", settings=AppSettings(wait_s=0.0))

    @app.handler("order.paid")
    async def book() -> None: ...

    with pytest.raises(ServerUnreachableError, match=f"Redis at 127.0.0.1:{port} could not be reached"):
        await app.run()


@pytest.mark.parametrize(
    ("line", "is_waited_for"),
    [
        (b"-LOADING Redis is loading the dataset in memory\r\n", True),
        (b"-NOAUTH Authentication required.\r\n", False),
        (b"-WRONGPASS invalid username-password pair or user is disabled.\r\n", False),
        (b"+PONG\r\n", False),
    ],
)
async def test_a_loading_redis_is_waited_for_and_a_refusing_one_is_not(
    line: bytes,
    is_waited_for: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """After a power cut Redis accepts connections while it reads its file. These are its lines, from a socket."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            commands = data.count(b"*")
            writer.write(line * commands)

    async with serving(serve) as port:
        found = await check_redis(redis_client(f"redis://127.0.0.1:{port}/0?protocol=2")).run()

    assert (found is not None) is is_waited_for
