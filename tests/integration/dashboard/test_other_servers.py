"""The pages of the database and of RabbitMQ, before real ones."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pika
import pytest
from httpx import ASGITransport, AsyncClient
from sqlalchemy import create_engine
from tests.integration.dashboard.conftest import OpenClient

from conquiet.dashboard import EVERYTHING, Access, Dashboard, DashboardSettings, dashboard
from conquiet.db import DbSession
from conquiet.testing import wait_until_async
from conquiet.testing.rabbitmq import RabbitMQServer
from conquiet.transactional import Outbox, create_tables

SECRET = "body-7f3a9c"


@pytest.fixture
async def open_client(redis_url: str) -> AsyncIterator[OpenClient]:
    apps: list[Dashboard] = []

    def build(**settings: Any) -> AsyncClient:
        given = DashboardSettings(redis_url=redis_url, **settings)
        apps.append(dashboard(given, authorize=lambda _: Access("ann", EVERYTHING)))
        return AsyncClient(
            transport=ASGITransport(apps[-1]), base_url="http://127.0.0.1", follow_redirects=True, timeout=60
        )

    yield build
    for app in apps:
        await app.close()


async def post(client: AsyncClient, page: str, path: str, **fields: str) -> Any:
    token = re.search(r'name="csrf" value="(\w+)"', (await client.get(page)).text)
    assert token is not None
    return await client.post(path, data={"csrf": token[1], **fields})


async def has_history(client: AsyncClient, queue: str) -> bool:
    """Return whether the page shows the hour of a queue: the broker samples it a few seconds after its declaration."""
    answer = await client.get(f"/rabbit/queue?queue={queue}")
    assert answer.status_code == 200
    return "Published in the hour" in answer.text and SECRET not in answer.text


async def test_the_database_page_shows_the_outbox_and_missing_tables(open_client: OpenClient, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    engine = create_engine(url)
    client = open_client(db_url=url)
    assert "conquiet_outbox" in (await client.get("/database")).text
    create_tables(engine)
    with DbSession(engine) as session:
        Outbox().add(session, "ledger", {"note": SECRET})
    engine.dispose()

    text = (await client.get("/database")).text

    assert "ledger" in text
    assert "No connection waits for a lock" in text
    assert SECRET not in text


async def test_the_rabbitmq_page_looks_at_dead_letters_without_their_bodies(
    open_client: OpenClient, amqp_url: str, rabbitmq_server: RabbitMQServer
) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.queue_declare("orders.dead", durable=True)
    channel.queue_declare(
        "orders", durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dead"}
    )
    channel.basic_publish("", "orders", SECRET.encode(), pika.BasicProperties(message_id="m-1"))
    got = None
    while got is None:
        got, _, _ = channel.basic_get("orders")
    channel.basic_reject(got.delivery_tag, requeue=False)
    connection.close()
    client = open_client(rabbit_url=amqp_url, rabbit_api_url=str(rabbitmq_server.management_url))

    async def is_listed() -> bool:
        return "orders.dead" in (await client.get("/rabbit")).text

    await wait_until_async(is_listed)
    await wait_until_async(lambda: has_history(client, "orders"))
    assert (await client.get("/rabbit/queue?queue=missing")).status_code == 404
    looked = await post(client, "/rabbit", "/rabbit/peek", queue="orders.dead")
    assert "m-1" in looked.text
    assert "rejected" in looked.text
    assert SECRET not in looked.text
    dry = await post(client, "/rabbit", "/rabbit/act", queue="orders.dead", do="replay", dry="1")
    assert "1 would be replayed" in dry.text
    done = await post(client, "/rabbit", "/rabbit/act", queue="orders.dead", do="replay", dry="0")
    assert "1 of 1 replayed" in done.text
