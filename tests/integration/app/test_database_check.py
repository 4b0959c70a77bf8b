"""An application with an unavailable database is not ready and reports the reason, without a message."""

import asyncio
from collections.abc import Callable

import pytest
from sqlalchemy import create_engine

from conquiet.app.database_check import DatabaseCheck, check_for
from conquiet.testing import FaultProxy, wait_until_async


async def test_a_database_that_goes_away_and_returns_is_noticed(
    postgres_url: str, fault_proxy: Callable[[str], FaultProxy], caplog: pytest.LogCaptureFixture
) -> None:
    proxy = fault_proxy(postgres_url)
    check = DatabaseCheck(create_engine(proxy.url_for(postgres_url)), interval_s=0.05)
    running = asyncio.create_task(check.run())
    await wait_until_async(lambda: check.health().ready)

    proxy.refuse()
    await wait_until_async(lambda: not check.health().ready)
    reason = check.health().reason
    proxy.accept()
    await wait_until_async(lambda: check.health().ready)
    check.stop()
    await running

    assert "could not be reached" in reason
    assert f"server 127.0.0.1:{proxy.port}" in reason
    begin, end = caplog.messages
    assert begin.startswith(f"the database at 127.0.0.1:{proxy.port}")
    assert "is available again after" in end


async def test_a_database_that_takes_connections_and_never_answers_is_noticed(
    postgres_url: str, fault_proxy: Callable[[str], FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check waits with it and has no failure to report: only the age of its last result shows the outage."""
    monkeypatch.setattr("conquiet.app.database_check._STALE_S", 0.5)
    proxy = fault_proxy(postgres_url)
    check = DatabaseCheck(create_engine(proxy.url_for(postgres_url)), interval_s=0.05)
    running = asyncio.create_task(check.run())
    await wait_until_async(lambda: proxy.counters.connections >= 2)

    proxy.stall()
    await wait_until_async(lambda: not check.health().ready)
    reason = check.health().reason
    proxy.resume()
    await wait_until_async(lambda: check.health().ready)
    check.stop()
    await running

    assert reason.startswith(f"the server 127.0.0.1:{proxy.port}/")
    assert reason.endswith(" has not replied for 0.5 s")


def test_a_file_needs_no_check() -> None:
    assert check_for(lambda: create_engine("sqlite://")) == []
