"""Rows that wait in the outbox when a ``TestApp`` begins, on each database."""

from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from conquiet.app import App, AppSettings, TestApp


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    found: str = request.getfixturevalue({"postgres": "postgres_url", "mariadb": "mariadb_url"}[request.param])
    return found


def new_app(url: str, name: str) -> tuple[App, list[str]]:
    app = App(name, redis="redis://127.0.0.1:1/0", database=url, settings=AppSettings(outbox="waiting_rows"))
    seen: list[str] = []

    @app.handler("order.due")
    async def remind(order: dict[str, str]) -> None:
        seen.append(order["id"])

    return app, seen


async def test_a_delay_that_began_before_ends_by_the_tests_clock(url: str) -> None:
    """A test client emits before the ``TestApp`` begins; the database's clock would never reach the due time."""
    app, seen = new_app(url, f"shop-{uuid4().hex}")
    other, _ = new_app(url, f"other-{uuid4().hex}")
    app.create_tables()
    engine = create_engine(url)
    with Session(engine) as session, session.begin():
        app.emit_sync("order.due", {"id": "now"}, session=session)
        app.emit_sync("order.due", {"id": "in an hour"}, session=session, delay_s=3_600)
        other.emit_sync("order.due", {"id": "of another app"}, session=session, delay_s=3_600)

    async with TestApp(app) as t:
        await t.drain()
        assert seen == ["now"]
        t.clock.advance(3_500)
        await t.drain()
        assert seen == ["now"]
        t.clock.advance(100)
        await t.drain()
    assert seen == ["now", "in an hour"]
    with engine.connect() as connection:
        left = connection.execute(text("SELECT target FROM waiting_rows")).scalars().all()
    engine.dispose()
    assert [bytes(target).decode().partition("-")[0] for target in left] == ["other"]
