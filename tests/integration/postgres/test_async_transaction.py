"""Async handlers on PostgreSQL: a failed statement is not committed, a lost reply to COMMIT is resolved."""

from collections.abc import AsyncIterator, Callable

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from conquiet.errors import CommitUnknownError, ConflictError, DatabaseUnavailableError, DbWriteError
from conquiet.testing import FaultProxy
from conquiet.transactional.async_transaction import AsyncTransaction, resolve_commit_async

INSERT = text("INSERT INTO orders (id) VALUES (1)")
Count = Callable[[], int]


@pytest.fixture(params=["psycopg", "asyncpg"])
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def far(
    engine: Engine, postgres_url: str, driver: str, fault_proxy: Callable[[str], FaultProxy]
) -> AsyncIterator[tuple[AsyncEngine, FaultProxy]]:
    """An engine with connections through a proxy."""
    proxy = fault_proxy(postgres_url)
    made = create_async_engine(proxy.url_for(postgres_url).replace("psycopg", driver))
    yield made, proxy
    await made.dispose()


async def test_a_failed_statement_that_was_caught_is_not_committed(
    far: tuple[AsyncEngine, FaultProxy], count: Count
) -> None:
    engine, _ = far
    with pytest.raises(DbWriteError, match="savepoint"):  # noqa: PT012 - leaving the block raises
        async with AsyncTransaction(engine) as connection:
            await connection.execute(INSERT)
            with pytest.raises(DBAPIError):
                await connection.execute(INSERT)

    assert count() == 0


async def test_a_lost_reply_is_resolved_as_committed(far: tuple[AsyncEngine, FaultProxy], count: Count) -> None:
    engine, proxy = far
    async with AsyncTransaction(engine) as connection:
        await connection.execute(INSERT)
        proxy.drop_next_reply(b"COMMIT")

    proxy.wait_for_fault()
    assert count() == 1
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_a_commit_that_never_arrived_is_resolved_as_failed(
    far: tuple[AsyncEngine, FaultProxy], count: Count
) -> None:
    engine, proxy = far
    with pytest.raises(DatabaseUnavailableError, match="rolled back"):  # noqa: PT012 - leaving the block raises
        async with AsyncTransaction(engine) as connection:
            await connection.execute(INSERT)
            proxy.drop_next_request(b"COMMIT")

    assert count() == 0
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_a_commit_stays_unknown_while_the_server_is_away(
    far: tuple[AsyncEngine, FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "conquiet.transactional.async_transaction.resolve_commit_async",
        lambda *of: resolve_commit_async(*of, timeout_s=0.2),
    )
    engine, proxy = far
    with pytest.raises(CommitUnknownError):  # noqa: PT012 - leaving the block raises
        async with AsyncTransaction(engine, before_commit=proxy.refuse) as connection:
            await connection.execute(INSERT)
            proxy.drop_next_reply(b"COMMIT")

    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_a_serialization_failure_is_a_conflict(engine: Engine, postgres_url: str, driver: str) -> None:
    strict = create_async_engine(postgres_url.replace("psycopg", driver), isolation_level="SERIALIZABLE")
    rows = text("SELECT COUNT(*) FROM orders")
    with pytest.raises(ConflictError):  # noqa: PT012 - leaving the block raises
        async with AsyncTransaction(strict) as late:
            await late.execute(rows)
            await late.execute(INSERT)
            async with AsyncTransaction(strict) as early:
                await early.execute(rows)
                await early.execute(text("INSERT INTO orders (id) VALUES (2)"))
    await strict.dispose()
