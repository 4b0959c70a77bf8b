"""The code of docs/app.md, run from top to bottom."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

PAGE = Path(__file__).parents[3] / "docs" / "app.md"
URL = "sqlite:///shop.db"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The names that the code of the page defines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("DB_URL", URL)
    engine = create_engine(URL)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ledger (order_id VARCHAR(20), cents INT)"))
    engine.dispose()
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    names: dict[str, Any] = {"__name__": "shop"}
    exec(compile(code, "docs/app.md", "exec"), names)
    return names


async def test_the_test_of_the_page_passes(page: dict[str, Any]) -> None:
    await page["test_an_order_is_booked_once"]()

    engine = create_engine(URL)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT * FROM ledger")).all() == [("1", 500)]
    engine.dispose()


async def test_the_route_of_the_page_emits_both_ways(page: dict[str, Any]) -> None:
    engine = create_async_engine("sqlite+aiosqlite:///shop.db")
    # Not within a minute of a full hour: the schedule of the page would run too.
    async with page["TestApp"](page["app"], now=datetime(2026, 3, 2, 12, 30, tzinfo=UTC)) as t:
        async with AsyncSession(engine) as session:
            await page["pay"](session, page["OrderPaid"]("9", 1))
            await session.commit()
        assert await t.drain() == 1
        t.clock.advance(60)
        assert await t.drain() == 1
    await engine.dispose()


async def test_the_resource_and_the_upgrade_of_the_page_work(
    page: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    async with page["TestApp"](page["app"]) as t:
        await t.deliver("order.shipped", {"order_id": "7"}, message_id="old")
        await t.drain()

    assert t.dead_letters == []
    assert capsys.readouterr().out == "mail for 7\n"
