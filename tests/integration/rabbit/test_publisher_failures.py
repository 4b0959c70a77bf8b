"""One bad message or one lost channel fails no other message."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from tests.integration.rabbit.conftest import Rabbit

from conquiet.errors import ConfigurationError, PublishError
from conquiet.rabbit import Outgoing, Publisher
from conquiet.rabbit.connection import Link
from conquiet.testing import wait_until_async


@pytest.mark.parametrize(
    "bad",
    [
        {"properties": {"expiration": 60000}},
        {"properties": {"priority": 300}},
        {"properties": {"nonsense": 1}},
        {"properties": {"timestamp": -1}},
        {"message_id": uuid4()},
        {"headers": {"n": 2**64}},
        {"headers": {"n": "x" * 200_000}},
        {"exchange": "x" * 256},
        {"exchange": None},
    ],
    ids=lambda bad: "-".join(str(name) for name in bad),
)
async def test_a_message_that_cannot_be_encoded_shifts_no_confirmation(rabbit: Rabbit, bad: dict[str, Any]) -> None:
    """A number the broker never saw shifts later confirmations to other messages: a refused one looks confirmed."""
    full = rabbit.queue("full", x_max_length=1, x_overflow="reject-publish")
    queue = rabbit.queue()
    rabbit.put(full, b"the only one")
    async with Publisher(rabbit.url, timeout_s=10) as publisher:
        await publisher.publish(queue, b"1")
        with pytest.raises(ConfigurationError) as caught:
            await publisher.send(Outgoing(queue, b"2", **bad))
        assert "xxx" not in str(caught.value)

        refused, confirmed = await asyncio.gather(
            publisher.publish(full, b"3"), publisher.publish(queue, b"4"), return_exceptions=True
        )

    assert isinstance(refused, PublishError)
    assert refused.reason == "refused"
    assert isinstance(confirmed, str)
    assert [body for _, body in rabbit.take(queue)] == [b"1", b"4"]


async def test_in_a_batch_those_before_one_that_cannot_be_encoded_are_confirmed(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    progress: list[int] = []
    messages = [Outgoing(queue, b"1"), Outgoing(queue, b"2"), Outgoing(queue, b"3", properties={"priority": -1})]
    async with Publisher(rabbit.url) as publisher:
        with pytest.raises(ConfigurationError, match="priority has to be"):
            await publisher.publish_many(messages, on_progress=progress.append)

    assert progress == [rabbit.depth(queue)] == [2]


async def test_floats_in_headers_arrive(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    async with Publisher(rabbit.url) as publisher:
        await publisher.publish(queue, b"1", headers={"ratio": 2.75})

    link = await Link.open(publisher._address)
    fetched = await link.fetch(queue)
    await link.close()
    assert fetched is not None
    assert fetched.headers == {"ratio": 2.75}


async def test_an_unexpected_error_ends_the_link_before_it_is_raised(
    rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rabbit.queue()
    async with Publisher(rabbit.url) as publisher:
        await publisher.publish(queue, b"1")
        assert publisher._channel is not None
        link = publisher._channel.link

        def fail(*_: object, **_options: object) -> None:
            raise LookupError("unexpected")

        monkeypatch.setattr(link._channel, "basic_publish", fail)
        with pytest.raises(LookupError):
            await publisher.publish(queue, b"2")
        assert not link.is_open
        await publisher.publish(queue, b"3")
        assert link._connection.is_closed

    assert [body for _, body in rabbit.take(queue)] == [b"1", b"3"]


async def test_a_lost_channel_is_explained_and_its_connection_is_closed(
    rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rabbit.queue()
    links: list[Link] = []
    opened = Link.open

    async def noted(*arguments: Any, **options: Any) -> Link:
        links.append(await opened(*arguments, **options))
        return links[-1]

    monkeypatch.setattr(Link, "open", noted)
    async with Publisher(rabbit.url, timeout_s=10) as publisher:
        for _ in range(3):
            with pytest.raises(PublishError, match=r"\(404\).*exchange that does not exist.*no-such") as caught:
                await publisher.publish("key", b"1", exchange="no-such")
            assert caught.value.reason == "ChannelClosedByBroker (404)"
        await publisher.publish(queue, b"2")

        assert [link._connection.is_closed for link in links] == [True, True, True, False]


async def test_a_channel_that_never_came_to_confirm_is_not_used(
    rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rabbit.queue()
    links: list[Link] = []
    switch = Link.confirm_publishes

    async def cancelled(link: Link, *_: Any) -> None:
        links.append(link)
        raise asyncio.CancelledError

    async with Publisher(rabbit.url, timeout_s=10) as publisher:
        monkeypatch.setattr(Link, "confirm_publishes", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await publisher.publish(queue, b"1")
        monkeypatch.setattr(Link, "confirm_publishes", switch)
        await publisher.publish(queue, b"2")

    assert [link._connection.is_closed for link in links] == [True]
    assert [body for _, body in rabbit.take(queue)] == [b"2"]


async def test_a_close_while_connecting_leaves_no_connection_and_publishes_nothing(
    rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rabbit.queue()
    links: list[Link] = []
    opened = Link.open
    publisher = Publisher(rabbit.url, timeout_s=10)

    async def closed_meanwhile(*arguments: Any, **options: Any) -> Link:
        links.append(await opened(*arguments, **options))
        await publisher.close()
        return links[-1]

    monkeypatch.setattr(Link, "open", closed_meanwhile)
    for _ in range(2):  # and it does not come to life again
        with pytest.raises(PublishError, match="is closed") as caught:
            await publisher.publish(queue, b"1")
        assert caught.value.reason == "closed"

    assert [link._connection.is_closed for link in links] == [True]
    assert rabbit.depth(queue) == 0


async def test_of_large_messages_fewer_are_under_way_than_the_window_allows(
    rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conquiet.rabbit.publisher._WINDOW_BYTES", 1_000)
    queue = rabbit.queue()
    under_way: list[int] = []
    async with Publisher(rabbit.url, window=100) as publisher:

        def messages() -> Iterator[Outgoing]:
            for _ in range(20):
                under_way.append(0 if publisher._channel is None else len(publisher._channel._waiting))
                yield Outgoing(queue, b"x" * 400)

        assert await publisher.publish_many(messages()) == 20

    assert max(under_way) == 2  # and the third makes it more than 1,000 bytes
    assert rabbit.depth(queue) == 20


async def test_a_close_that_is_cancelled_closes_all_the_same(rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher, closing = Publisher(rabbit.url), asyncio.Event()
    await publisher.publish(rabbit.queue(), b"1")
    assert publisher._channel is not None
    link = publisher._channel.link

    async def hangs() -> None:
        closing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(link, "close_channel", hangs)
    task = asyncio.create_task(publisher.close())
    await closing.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    await wait_until_async(lambda: link._connection.is_closed)
