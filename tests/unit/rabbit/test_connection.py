"""A link that cannot be opened raises once and leaves nothing behind."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
from tests.tcp_servers import serving

from conquiet.errors import RabbitConnectionError
from conquiet.rabbit.address import Address
from conquiet.rabbit.connection import Link, LossKind


async def until_the_end(reader: Any, writer: Any, says: bytes) -> None:
    writer.write(says)
    while await reader.read(1000):
        pass
    writer.close()


async def silence(reader: Any, writer: Any) -> None:
    await until_the_end(reader, writer, b"")


async def talk_nonsense(reader: Any, writer: Any) -> None:
    await until_the_end(reader, writer, b"\x01\0\0\0\0\0\0no frame ends like this")


async def hang_up(_reader: Any, writer: Any) -> None:
    writer.close()


@pytest.fixture
def uncaught() -> list[Any]:
    """Everything asyncio reports because it was not retrieved; ``sync_queue`` ends the process for that."""
    return []


async def why_not_opened(port: int, uncaught: list[Any], *, timeout_s: float = 30.0) -> str | None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: uncaught.append(context))
    try:
        await Link.open(Address((f"amqp://guest:guest@127.0.0.1:{port}/",), timeout_s=timeout_s))
    except RabbitConnectionError as error:
        reason = error.reason
    await asyncio.sleep(0.01)  # for what the closing has scheduled
    gc.collect()
    return reason


async def test_a_port_without_a_server_is_an_error(uncaught: list[Any], closed_port: int) -> None:
    reason = await why_not_opened(closed_port, uncaught)

    assert reason == "ConnectionRefusedError"
    assert uncaught == []


@pytest.mark.parametrize(
    ("server", "reason"),
    [(silence, "timeout"), (hang_up, "IncompatibleProtocolError"), (talk_nonsense, "IncompatibleProtocolError")],
)
async def test_a_server_that_is_no_broker_is_an_error(
    uncaught: list[Any], server: Callable[..., Any], reason: str
) -> None:
    async with serving(server) as port:
        found = await why_not_opened(port, uncaught, timeout_s=0.5 if server is silence else 30.0)

    assert found == reason
    assert uncaught == []


async def test_a_connection_that_a_forced_stop_ends_has_its_reason() -> None:
    """A publisher that waits for its confirmation reports the reason."""
    link = Link(1.0)

    link.drop()

    assert (link.lost.result().kind, link.lost.result().reason) == (LossKind.CONNECTION, "StreamLostError")
