"""Handlers cancelled at random points on PostgreSQL: nothing is left at the server, and no effect is half done.

Counted at the server: connections and open transactions, with the garbage collector switched off.
``CONQUIET_TORTURE=1`` makes it 10,000 handlers.
"""

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from conquiet.queue.models import QueueMessage
from conquiet.testing import FaultProxy, wait_until_async
from conquiet.transactional import Inbox, async_transaction, create_tables, effect_once_async

TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
HANDLERS = 10_000 if TORTURE else 400
# In turn, so that on a fast machine and a slow one, with each driver, some are cancelled and some are done.
WITHIN_S = (0.02, 0.1, 0.8)
UNTOUCHED = 2  # of 20 run to their end: on a busy machine every other one may be cancelled

both_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])


@pytest.fixture
def effects(engine: Engine) -> Callable[[], dict[str, int]]:
    """Return how often each message has its first and second effect, and its inbox row."""
    create_tables(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effect (m INT, step INT)"))

    def read() -> dict[str, int]:
        with engine.connect() as connection:
            return {
                name: int(connection.execute(text(f"SELECT COUNT({what}) FROM {table}")).scalar_one())
                for name, what, table in (
                    ("messages", "DISTINCT m", "effect"),
                    ("first", "*", "effect WHERE step = 1"),
                    ("second", "*", "effect WHERE step = 2"),
                    ("inbox", "*", "conquiet_inbox"),
                )
            }

    return read


def at_the_server(engine: Engine) -> tuple[int, int]:
    """Return the other connections to this test's database, and how many are in a transaction."""
    with engine.connect() as connection:
        row = connection.execute(
            text(
                "SELECT COUNT(*) AS others, COUNT(xact_start) AS open FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        ).one()
        return int(row.others), int(row.open)


async def effect(session: Any, number: int) -> None:
    await session.execute(text("INSERT INTO effect (m, step) VALUES (:m, 1)"), {"m": number})
    await asyncio.sleep(0)
    await session.execute(text("INSERT INTO effect (m, step) VALUES (:m, 2)"), {"m": number})


@pytest.mark.timeout(1_800 if TORTURE else 300)
@pytest.mark.parametrize("orm", ["orm", "core"])
@both_drivers
@pytest.mark.usefixtures("no_collector")
async def test_cancelled_handlers_leave_nothing_at_the_server(
    engine: Engine, postgres_url: str, effects: Callable[[], dict[str, int]], driver: str, orm: str
) -> None:
    rng = random.Random(20261117)
    async_engine = create_async_engine(postgres_url.replace("psycopg", driver), pool_size=5, max_overflow=5)
    source: Any = async_sessionmaker(async_engine) if orm == "orm" else async_engine
    inbox = Inbox()
    cancelled = done = 0

    async def run(number: int) -> None:
        message = QueueMessage("orders", "billing", f"{number}-0", {})
        await effect_once_async(source, inbox, message, lambda session: effect(session, number))

    for start in range(0, HANDLERS, 20):
        tasks = [asyncio.create_task(run(number)) for number in range(start, start + 20)]
        within_s = WITHIN_S[start // 20 % len(WITHIN_S)]
        for task in tasks[UNTOUCHED:]:
            asyncio.get_running_loop().call_later(rng.uniform(0, within_s), task.cancel)
        for task in tasks:
            try:
                await task
                done += 1
            except asyncio.CancelledError:
                cancelled += 1
    pool: Any = async_engine.pool
    idle_connections = pool.checkedin()

    assert pool.checkedout() == 0
    assert not async_transaction._detached
    # The server notices a closed connection when it reads from it again: give it a moment, not a collector.
    await wait_until_async(lambda: at_the_server(engine)[1] == 0, message="no transaction left")
    await wait_until_async(
        lambda: at_the_server(engine)[0] <= idle_connections, message="no connection left but idle ones"
    )
    found = effects()
    print(f"\n{driver}, {orm}: {HANDLERS} handlers, {cancelled} cancelled, {done} done, {found}")  # noqa: T201
    assert cancelled > HANDLERS / 10
    assert done > HANDLERS / 50
    assert found["messages"] == found["first"] == found["second"] == found["inbox"] >= done

    async def again(number: int) -> None:
        with suppress(asyncio.CancelledError):
            await run(number)

    for start in range(0, HANDLERS, 10):  # delivered again, every message has its effect once
        await asyncio.gather(*map(again, range(start, start + 10)))
    assert set(effects().values()) == {HANDLERS}
    await async_engine.dispose()
    await wait_until_async(lambda: at_the_server(engine)[0] == 0, message="dispose() closes the rest")


@both_drivers
async def test_a_commit_in_flight_is_waited_for_and_the_cancellation_is_kept(
    postgres_url: str, fault_proxy: Callable[[str], FaultProxy], effects: Callable[[], dict[str, int]], driver: str
) -> None:
    proxy = fault_proxy(postgres_url)
    async_engine = create_async_engine(proxy.url_for(postgres_url).replace("psycopg", driver))
    async with async_engine.connect() as connection:
        await connection.execute(text("SELECT 1"))
    proxy.stall_next_reply(after_request_matching=b"COMMIT")
    message = QueueMessage("orders", "billing", "1-0", {})
    task = asyncio.create_task(effect_once_async(async_engine, Inbox(), message, lambda session: effect(session, 1)))
    await asyncio.to_thread(proxy.wait_for_fault)

    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=0.2)
    assert not done, "its COMMIT is under way"
    proxy.resume()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(effects().values()) == {1}
    assert async_engine.pool.checkedin() == 1, "the connection is as good as before"  # type: ignore[attr-defined]
    await async_engine.dispose()
