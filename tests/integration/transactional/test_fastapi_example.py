"""The web service of the documentation, with a real database and a real Redis."""

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import httpx
import pytest
import redis
import redis.asyncio
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from conquiet.db.session import DbSession
from conquiet.testing import wait_until_async
from conquiet.transactional import Outbox, OutboxRelay, ToProcessor

ROOT = Path(__file__).parents[3]


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fastapi_orders", ROOT / "examples" / "fastapi_orders.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fastapi_orders"] = module
    spec.loader.exec_module(module)
    return module


async def test_a_route_writes_an_order_and_its_message_together(
    example: ModuleType, engine: Engine, db_url: str, redis_url: str, key_prefix: str
) -> None:
    url = db_url.replace("+pymysql", "+asyncmy")
    app = example.create_app(url)
    transport = httpx.ASGITransport(app=app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
        kept = await http.post("/orders", json={"customer": "ann", "cents": 500})
        refused = await http.post("/orders", json={"customer": "bob", "cents": 0})
    assert (kept.status_code, refused.status_code) == (201, 422)
    assert Outbox().backlog(engine)["jobs"].waiting == 1
    assert orders(engine) == [("ann", 0)]

    stream = f"{key_prefix}jobs"
    with redis.Redis.from_url(redis_url) as client, ToProcessor(client, stream) as target:
        for _ in range(2):  # published twice, as after a crash of the relay
            with OutboxRelay(engine, {"jobs": target}) as relay:
                relay._report = broken  # type: ignore[assignment,method-assign]
                with pytest.raises(RuntimeError):
                    await asyncio.to_thread(relay.relay_once)
        # Both have the key of one customer: the second waits behind the first.
        assert (client.xlen(stream), client.llen(f"{{{stream}}}:order:key:ann")) == (1, 1)

    async_engine = create_async_engine(url)
    consumer = redis.asyncio.Redis.from_url(redis_url)
    processor = example.create_processor(consumer, async_sessionmaker(async_engine), stream)

    async def all_settled() -> bool:
        (group,) = await consumer.xinfo_groups(stream)
        return bool(group["entries-read"] == 2 and group["pending"] == 0)

    async with processor:
        await wait_until_async(all_settled, message="both entries are settled")
    assert orders(engine) == [("ann", 1)], "shipped once"
    await async_engine.dispose()
    await consumer.aclose()


def test_the_documentation_shows_the_route_as_it_is() -> None:
    source = (ROOT / "examples" / "fastapi_orders.py").read_text()
    page = (ROOT / "docs" / "exactly-once.md").read_text()

    start = source.index("    @app.post(")
    route = source[start : source.index("    return app")]

    assert "\n".join(line[4:] for line in route.rstrip().splitlines()) in page


def broken(*_: object) -> None:
    raise RuntimeError("died after publishing, before the commit")


def orders(engine: Engine) -> list[tuple[str, int]]:
    with DbSession(engine) as session:
        rows = session.fetch_all("SELECT customer, shipped FROM shop_order ORDER BY id")
    return [(row["customer"], row["shipped"]) for row in rows]
