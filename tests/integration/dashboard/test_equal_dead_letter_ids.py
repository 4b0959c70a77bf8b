"""Dead letters with equal ids in several partitions each have separate pages, actions and links."""

import json
import re
from typing import Any

import pytest
from httpx import AsyncClient
from tests.equal_dead_letters import add_equal_dead_letters, left_in, messages_in
from tests.integration.dashboard.conftest import OpenClient
from tests.integration.dashboard.test_requests import post
from tests.redis_clients import RawRedis

STREAM = "orders"


@pytest.fixture
def client(open_client: OpenClient) -> AsyncClient:
    return open_client(reveal=True)


@pytest.mark.parametrize("dead_id", ["7-0", "7-0.1", "7-0.2"])
async def test_the_page_of_one_shows_this_one(client: AsyncClient, raw: RawRedis, dead_id: str) -> None:
    add_equal_dead_letters(raw, STREAM, "7-0")

    page = (await client.get(f"/dead/show?stream={STREAM}&id={dead_id}")).text

    assert set(re.findall(r"of 7-0(?:\.[0-9])?", page)) == {f"of {dead_id}"}
    assert f"conquiet dead-letters show {STREAM} {dead_id}</code>" in page


async def test_each_row_leads_to_its_own_page(client: AsyncClient, raw: RawRedis) -> None:
    ids = add_equal_dead_letters(raw, STREAM, "7-0", "7-1")

    page = (await client.get(f"/dead?stream={STREAM}")).text
    life = (await client.get(f"/message?stream={STREAM}&id=of+7-1.2")).text

    assert re.findall(r'name="id" value="([^"]+)"', page) == ids[::-1]
    assert re.findall(r"/dead/show\?stream=orders&amp;id=([^\"]+)", page) == ids[::-1]
    assert re.findall(r"/dead/show\?stream=orders&amp;id=([^\"]+)", life) == ["7-1.2"]


async def test_older_pages_hold_each_once(client: AsyncClient, raw: RawRedis) -> None:
    ids = add_equal_dead_letters(raw, STREAM, *(f"7-{number}" for number in range(20)))

    first = (await client.get(f"/dead?stream={STREAM}")).text
    older = re.search(r'href="(/dead\?[^"]*before=[^"]+)"', first)
    assert older is not None
    second = (await client.get(older[1].replace("&amp;", "&"))).text

    assert re.findall(r'name="id" value="([^"]+)"', first + second) == ids[::-1]


@pytest.mark.parametrize("dead_id", ["7-0", "7-0.1", "7-0.2"])
@pytest.mark.parametrize("action", ["discard", "replay"])
async def test_an_action_on_one_spares_the_others(
    client: AsyncClient, raw: RawRedis, dead_id: str, action: str
) -> None:
    add_equal_dead_letters(raw, STREAM, "7-0")
    fields = {"do": action, "scope": "selected", "stream": STREAM, "id": dead_id}

    answer = await post(client, f"/dead/show?stream={STREAM}&id={dead_id}", "/dead/act", **fields)

    assert "1 of 1 dead letters of orders" in answer.text
    index = int(dead_id.partition(".")[2] or 0)
    assert left_in(raw, STREAM) == [int(number != index) for number in range(3)]
    assert [len(one) for one in messages_in(raw, STREAM)] == [
        int(number == index and action == "replay") for number in range(3)
    ]


async def test_one_is_edited_and_retried_alone(client: AsyncClient, raw: RawRedis) -> None:
    add_equal_dead_letters(raw, STREAM, "7-0")
    fields: dict[str, Any] = {"stream": STREAM, "id": "7-0.2", "data": '{"of": "new"}'}

    answer = await post(client, f"/dead/show?stream={STREAM}&id=7-0.2", "/dead/edit", **fields)

    assert "message of 7-0.2 of orders is retried with the new data" in answer.text
    assert left_in(raw, STREAM) == [1, 1, 0]
    ((message,),) = [one for one in messages_in(raw, STREAM) if one]
    assert json.loads(message)["data"] == {"of": "new"}
