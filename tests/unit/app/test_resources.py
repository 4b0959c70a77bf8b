import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from conquiet.app.resources import Resources
from conquiet.errors import ConfigurationError


class Pool:
    pass


class Client:
    def __init__(self, pool: Pool) -> None:
        self.pool = pool


@pytest.fixture
def resources() -> Resources:
    return Resources()


async def test_a_process_resource_is_made_once_and_a_message_resource_each_time(resources: Resources) -> None:
    resources.provide(Pool, Pool, scope="process")
    resources.provide(Client, lambda: Client(Pool()), scope="message")

    async with resources.open((Pool, Client)) as first, resources.open((Pool, Client)) as second:
        assert first[Pool] is second[Pool]
        assert first[Client] is not second[Client]


async def test_two_messages_at_once_make_a_process_resource_once(resources: Resources) -> None:
    made = []

    async def connect() -> Pool:
        made.append(1)
        await asyncio.sleep(0)
        return Pool()

    resources.provide(Pool, connect, scope="process")

    async def use() -> Any:
        async with resources.open((Pool,)) as found:
            return found[Pool]

    first, second = await asyncio.gather(use(), use())

    assert first is second
    assert made == [1]


async def test_clean_up_runs_in_reverse_order_and_sees_the_error(resources: Resources) -> None:
    seen: list[str] = []

    def pool() -> Iterator[Pool]:
        try:
            yield Pool()
        except LookupError:
            seen.append("pool saw the error")
            raise

    async def client(pool: Pool) -> AsyncIterator[Client]:
        try:
            yield Client(pool)
        finally:
            seen.append("client closed")

    resources.provide(Pool, pool, scope="message")
    resources.provide(Client, client, scope="message")

    async def fail() -> None:
        async with resources.open((Client,)) as found:
            assert isinstance(found[Client].pool, Pool)
            raise LookupError

    with pytest.raises(LookupError):
        await fail()

    assert seen == ["client closed", "pool saw the error"]


async def test_process_resources_are_cleaned_up_at_the_end(resources: Resources) -> None:
    seen: list[str] = []

    async def pool() -> AsyncIterator[Pool]:
        yield Pool()
        seen.append("closed")

    resources.provide(Pool, pool, scope="process")
    async with resources.open((Pool,)):
        pass
    assert seen == []

    await resources.close()

    assert seen == ["closed"]


async def test_an_override_holds_for_its_block_only(resources: Resources) -> None:
    resources.provide(Pool, Pool, scope="process")
    fake = Pool()

    with resources.override(Pool, fake):
        async with resources.open((Pool,)) as found:
            assert found[Pool] is fake
    async with resources.open((Pool,)) as found:
        assert found[Pool] is not fake


async def test_an_overridden_resource_reaches_the_factories_that_need_it(resources: Resources) -> None:
    def client(pool: Pool) -> Client:
        return Client(pool)

    resources.provide(Pool, Pool, scope="process")
    resources.provide(Client, client, scope="message")
    fake = Pool()

    with resources.override(Pool, fake):
        async with resources.open((Client,)) as found:
            assert found[Client].pool is fake


def test_wrong_declarations_are_refused_with_a_sentence(resources: Resources) -> None:
    def client(pool: Pool) -> Client:
        return Client(pool)

    with pytest.raises(ConfigurationError, match="asks for 'pool', which is not provided"):
        resources.provide(Client, client, scope="message")
    resources.provide(Pool, Pool, scope="message")
    with pytest.raises(ConfigurationError, match="Pool is provided already"):
        resources.provide(Pool, Pool, scope="message")
    with pytest.raises(ConfigurationError, match="cannot hold Pool, which is made for each message"):
        resources.provide(Client, client, scope="process")
    with pytest.raises(ConfigurationError, match="must be callable"):
        resources.provide(int, 5, scope="message")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="nothing to override"), resources.override(int, 5):
        pass
