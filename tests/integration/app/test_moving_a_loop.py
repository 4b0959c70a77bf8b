"""The code of docs/moving-a-loop.md, on a stream that a plain program has written."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine, text
from tests.integration.app.conftest import OnServers
from tests.integration.app.pages import run_page


async def test_the_app_continues_where_the_plain_loop_stopped(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db_url = f"sqlite:///{tmp_path / 'shop.db'}"
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("DB_URL", db_url)
    engine = create_engine(db_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ledger (order_id VARCHAR(20), cents INT)"))
    client: Any = redis.Redis.from_url(redis_url)
    client.xgroup_create("orders", "billing", id="0", mkstream=True)
    for number in range(4):
        client.xadd("orders", {"order": f"o{number}", "cents": 100})
    client.xadd("orders", {"order": "o4", "cents": "many"})
    ((_, done),) = client.xreadgroup("billing", "worker-1", {"orders": ">"}, count=1)
    client.xack("orders", "billing", done[0][0])

    with run_page("moving-a-loop.md", "billing") as page:
        assert capsys.readouterr().out == "o0\n"
        client.xgroup_destroy("orders", "reports")
        app = page["app"]
        await asyncio.to_thread(app.create_tables)
        servers = OnServers(app, redis_url, engine)
        async with app:
            await servers.settle()
            (dead,) = await servers.dead_letters()

    with engine.connect() as connection:
        booked = set(connection.execute(text("SELECT order_id FROM ledger")).scalars())
    page["client"].close()
    client.close()
    await servers.close()
    engine.dispose()
    assert booked == {"o1", "o2", "o3"}
    assert (dead.reason, dead.raw) == ("malformed", {"order": "o4", "cents": "many"})
