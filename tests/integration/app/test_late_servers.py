"""An application that starts before its servers."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url

from conquiet import App
from conquiet.app import AppSettings
from conquiet.app.server_wait import check_database, wait_for_servers
from conquiet.errors import DbWriteError
from conquiet.testing import FaultProxy, wait_until_async
from conquiet.testing.redis import RedisServer


async def test_an_app_that_starts_before_redis_waits_and_works(
    private_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = await asyncio.to_thread(private_redis)
    await asyncio.to_thread(server.kill)
    app = App("shop", redis=server.url, settings=AppSettings(wait_s=60.0))
    seen = asyncio.Event()

    @app.handler("order.paid")
    async def book() -> None:
        seen.set()

    with caplog.at_level(logging.WARNING, logger="conquiet.app"):
        running = asyncio.create_task(app.run())
        await wait_until_async(lambda: any("cannot be reached" in record.getMessage() for record in caplog.records))
        await asyncio.to_thread(server.restart)
        await wait_until_async(lambda: app.health().ready)
        async with asyncio.timeout(60):
            await app.emit("order.paid")
            await seen.wait()
        app.stop()
        await running

    named = [record.getMessage() for record in caplog.records if "cannot be reached" in record.getMessage()]
    assert named == [f"Redis at 127.0.0.1:{server.port} cannot be reached (ConnectionError); waiting up to 60 s for it"]


@pytest.mark.parametrize("driver", ["mysql+pymysql", "postgresql+psycopg"])
async def test_a_port_that_accepts_and_hangs_up_is_not_an_answer(
    driver: str, closed_port: int, fault_proxy: Callable[[str], FaultProxy]
) -> None:
    """The proxy of docker accepts connections before the server behind it is there."""
    url = f"{driver}://user:secret@127.0.0.1:{closed_port}/shop"
    engine = create_engine(fault_proxy(url).url_for(url))

    found = await check_database(engine).run()
    engine.dispose()

    assert found is not None


async def test_a_server_that_answers_and_refuses_is_not_waited_for(postgres_url: str, db_url: str) -> None:
    for given in (postgres_url, db_url):
        engine = create_engine(make_url(given).set(username="stranger", password="wrong"))

        assert await check_database(engine).run() is None
        with pytest.raises(DbWriteError, match="checking the app's tables failed"):
            await check_database(engine, lambda _connection: None).run()
        engine.dispose()


async def test_a_database_that_goes_away_during_the_check_is_waited_for(
    postgres_url: str, fault_proxy: Callable[[str], FaultProxy]
) -> None:
    """It replied, and was restarted before the check of the tables: the worker ended with exit code 1."""
    proxy = fault_proxy(postgres_url)
    engine = create_engine(proxy.url_for(postgres_url))
    checks: list[bool] = []

    def check(connection: Any) -> None:
        if not checks:
            proxy.disconnect()
        checks.append(True)
        connection.exec_driver_sql("SELECT 1")

    await wait_for_servers([check_database(engine, check)], 60.0, lambda: False)
    engine.dispose()

    assert len(checks) == 2
