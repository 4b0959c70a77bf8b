"""Inbox and outbox write into the transaction that the caller already has, for every kind of session."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, DatabaseUnavailableError, DbWriteError, LifecycleError
from conquiet.queue.models import QueueMessage
from conquiet.transactional import Inbox, InboxKey, Outbox

MESSAGE = QueueMessage("orders", "billing", "1-0", {})


def rows(engine: Engine, table: str) -> int:
    with DbSession(engine) as session:
        return int(session.execute_scalar(f"SELECT COUNT(*) FROM {table}"))


@pytest_asyncio.fixture
async def async_engine(engine: Engine) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))
    yield made
    await made.dispose()


def write(session: Any) -> None:
    with Inbox().once(session, MESSAGE) as first_time:
        assert first_time
    Outbox().add(session, "ledger", {"n": 1})


async def write_async(session: Any) -> None:
    async with Inbox().once(session, MESSAGE) as first_time:
        assert first_time
    await Outbox().add_async(session, "ledger", {"n": 1})


@pytest.mark.parametrize("commits", [1, 0])
@pytest.mark.parametrize("kind", ["Session", "scoped_session", "Connection"])
def test_rows_share_the_end_of_a_sync_transaction(engine: Engine, kind: str, commits: int) -> None:
    session: Any = {
        "Session": lambda: Session(engine),
        "scoped_session": lambda: scoped_session(sessionmaker(engine)),
        "Connection": engine.connect,
    }[kind]()
    write(session)
    session.commit() if commits else session.rollback()
    session.close()

    assert (rows(engine, "conquiet_inbox"), rows(engine, "conquiet_outbox")) == (commits, commits)


@pytest.mark.parametrize("commits", [1, 0])
@pytest.mark.parametrize("kind", [AsyncSession, AsyncConnection])
async def test_rows_share_the_end_of_an_async_transaction(
    engine: Engine, async_engine: AsyncEngine, kind: type, commits: int
) -> None:
    session: Any = AsyncSession(async_engine) if kind is AsyncSession else async_engine.connect()
    async with session:
        await write_async(session)
        await (session.commit() if commits else session.rollback())

    assert (rows(engine, "conquiet_inbox"), rows(engine, "conquiet_outbox")) == (commits, commits)


async def test_rows_are_written_into_the_session_of_an_async_scope(engine: Engine, async_engine: AsyncEngine) -> None:
    session: Any = async_scoped_session(async_sessionmaker(async_engine), asyncio.current_task)
    await write_async(session)
    assert rows(engine, "conquiet_inbox") == 0
    await session.commit()
    await session.remove()

    assert (rows(engine, "conquiet_inbox"), rows(engine, "conquiet_outbox")) == (1, 1)


async def test_a_second_transaction_finds_the_message(engine: Engine, async_engine: AsyncEngine) -> None:
    with Session(engine) as session, session.begin():
        write(session)

    async with AsyncSession(async_engine) as other:
        async with Inbox().once(other, MESSAGE) as first_time:
            assert not first_time
        assert await Inbox().contains_async(other, MESSAGE)


async def test_a_key_is_recorded_once_in_async_transactions(async_engine: AsyncEngine) -> None:
    key = InboxKey("orders", "billing", "invoice-17")

    recorded = []
    for _ in range(2):
        async with AsyncSession(async_engine) as session, session.begin():
            recorded.append(await Inbox().record_async(session, key))

    assert recorded == [True, False]


def test_recording_twice_in_one_orm_transaction_is_an_error(engine: Engine) -> None:
    """If it returned False, the second caller would assume that its work is done."""
    with Session(engine) as session:
        write(session)
        with pytest.raises(LifecycleError, match="recorded the message"), Inbox().once(session, MESSAGE):
            pytest.fail("not reached")


def test_a_message_rolled_back_to_a_savepoint_can_be_recorded_again(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        savepoint = session.begin_nested()
        write(session)
        savepoint.rollback()
        write(session)

    assert rows(engine, "conquiet_inbox") == 1


def test_one_session_may_record_in_each_of_its_transactions(engine: Engine) -> None:
    with Session(engine) as session:
        write(session)
        session.rollback()
        write(session)
        session.commit()

    assert rows(engine, "conquiet_inbox") == 1


@pytest.mark.parametrize("url", ["postgresql+psycopg://u:p@127.0.0.1:1/shop", "mysql+pymysql://u:p@127.0.0.1:1/shop"])
def test_a_session_that_chooses_its_bind_reports_an_unavailable_database(url: str) -> None:
    """As the session of Flask-SQLAlchemy does. It counted as a mistake of the caller."""
    away = create_engine(url)

    class Choosing(Session):
        def get_bind(self, *_: Any, **__: Any) -> Engine:
            return away

    with pytest.raises(DatabaseUnavailableError, match=r"127\.0\.0\.1:1"):
        Outbox().add(Choosing(), "ledger", {})


async def test_the_wrong_form_says_which_one_to_write(engine: Engine, async_engine: AsyncEngine) -> None:
    async with AsyncSession(async_engine) as session:
        with pytest.raises(ConfigurationError, match=r"await outbox\.add_async"):
            Outbox().add(session, "ledger", {})  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="async with"), Inbox().once(session, MESSAGE):
            pytest.fail("not reached")
    with Session(engine) as plain:
        with pytest.raises(ConfigurationError, match="synchronous"):
            await Outbox().add_async(plain, "ledger", {})  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="synchronous"):
            async with Inbox().once(plain, MESSAGE):
                pytest.fail("not reached")


@pytest.mark.parametrize("wrong", [None, "session", Session, object()])
def test_an_object_that_is_not_a_session_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="session must be"):
        Outbox().add(wrong, "ledger", {})


def test_a_connection_in_autocommit_mode_is_refused(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        Outbox().add(connection, "ledger", {})
    engine.dispose()


def test_a_session_without_a_bind_says_what_to_pass() -> None:
    with Session() as session, pytest.raises(ConfigurationError, match=r"session\.connection\(bind_arguments"):
        Outbox().add(session, "ledger", {})


def test_a_missing_table_is_named_for_every_kind_of_session(engine: Engine) -> None:
    with engine.connect() as connection, pytest.raises(DbWriteError, match="conquiet db init"):
        Outbox("no_such_table").add(connection, "ledger", {})
