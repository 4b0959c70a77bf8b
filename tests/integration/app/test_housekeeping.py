"""A worker of an app deletes old inbox rows automatically."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from conquiet import App, AppSettings
from conquiet.errors import ConfigurationError
from conquiet.testing import wait_until_async
from conquiet.transactional import DatabaseRetention, Inbox, InboxKey, Outbox


@dataclass
class Action:
    id: str


def _rows(url: str) -> list[str]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT message_id FROM conquiet_inbox")).scalars().all()
    engine.dispose()
    return sorted(row.decode() if isinstance(row, bytes) else str(row) for row in found)


def _old_row(url: str) -> None:
    engine = create_engine(url)
    with Session(engine) as session:
        Inbox().record(session, InboxKey("orders", "g", "old"))
        session.commit()
    with engine.begin() as connection:
        connection.execute(text("UPDATE conquiet_inbox SET handled_at = '2020-01-01 00:00:00'"))
    engine.dispose()


@pytest.mark.parametrize("keeps", [False, True])
async def test_old_inbox_rows_go_and_new_ones_stay(
    redis_url: str,
    tmp_path: Path,
    key_prefix: str,
    keeps: bool,  # noqa: FBT001 - a parameter
) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    retention = None if keeps else DatabaseRetention(interval_s=0.05)
    app = App(f"{key_prefix}shop", redis=redis_url, database=url, settings=AppSettings(retention=retention))
    app.create_tables()
    _old_row(url)
    handled: list[str] = []

    @app.handler("action")
    def handle(action: Action, session: Session) -> None:
        handled.append(action.id)

    async with app:
        await app.emit("action", Action("a"))
        await wait_until_async(lambda: handled == ["a"])
        await wait_until_async(lambda: len(_rows(url)) == (2 if keeps else 1))
        ready = app.health().ready

    assert ("old" in _rows(url)) is keeps
    assert ready


async def test_parked_outbox_rows_go_by_their_own_age(redis_url: str, tmp_path: Path, key_prefix: str) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    retention = DatabaseRetention(interval_s=0.05, parked_s=86_400.0)
    app = App(f"{key_prefix}shop", redis=redis_url, database=url, settings=AppSettings(retention=retention))
    app.create_tables()
    engine = create_engine(url)
    with Session(engine) as session:
        for _ in range(3):
            Outbox().add(session, "unserved", {"n": 1})
        session.commit()
    with engine.begin() as connection:
        connection.execute(text("UPDATE conquiet_outbox SET parked = 1"))
        connection.execute(text("UPDATE conquiet_outbox SET created_at = '2020-01-01 00:00:00' WHERE seq <= 2"))

    def left() -> int:
        with engine.connect() as connection:
            return int(connection.scalar(text("SELECT COUNT(*) FROM conquiet_outbox")) or 0)

    running = asyncio.create_task(app.run(only=["relay"]))
    await wait_until_async(lambda: left() == 1)
    app.stop()
    await running
    engine.dispose()


def test_a_retention_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="retention must be a DatabaseRetention"):
        AppSettings(retention=30)  # type: ignore[arg-type]
