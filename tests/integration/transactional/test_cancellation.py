"""Handlers cancelled at random points: nothing is left at the server, and no effect is half done.

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
from sqlalchemy import text
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from conquiet.db.session import DbSession
from conquiet.errors import CommitUnknownError
from conquiet.queue.models import QueueMessage
from conquiet.testing import FaultProxy, wait_until_async
from conquiet.transactional import Inbox, async_transaction, effect_once_async

TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
HANDLERS = 10_000 if TORTURE else 200


@pytest.fixture
def effects(engine: Engine) -> Callable[[], dict[str, int]]:
    """Return how often each message has its first and second effect, and its inbox row."""
    with DbSession(engine) as session:
        session.execute("CREATE TABLE effect (id BIGINT AUTO_INCREMENT PRIMARY KEY, m INT, step INT) ENGINE=InnoDB")

    def read() -> dict[str, int]:
        with DbSession(engine) as session:
            return {
                "messages": int(session.execute_scalar("SELECT COUNT(DISTINCT m) FROM effect")),
                "first": int(session.execute_scalar("SELECT COUNT(*) FROM effect WHERE step = 1")),
                "second": int(session.execute_scalar("SELECT COUNT(*) FROM effect WHERE step = 2")),
                "inbox": int(session.execute_scalar("SELECT COUNT(*) FROM conquiet_inbox")),
            }

    return read


def at_the_server(engine: Engine) -> tuple[int, int]:
    """Return the other connections to this test's database, and the open transactions that wrote."""
    with engine.connect() as connection:
        others = connection.execute(
            text("SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
        ).scalar_one()
        open_now = connection.execute(
            text(
                "SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p "
                "ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE()"
            )
        ).scalar_one()
        return int(others), int(open_now)


async def effect(session: Any, number: int) -> None:
    await session.execute(text("INSERT INTO effect (m, step) VALUES (:m, 1)"), {"m": number})
    await asyncio.sleep(0)
    await session.execute(text("INSERT INTO effect (m, step) VALUES (:m, 2)"), {"m": number})


@pytest.mark.timeout(1_800 if TORTURE else 300)
@pytest.mark.parametrize("orm", ["orm", "core"])
@pytest.mark.parametrize("driver", ["asyncmy", "aiomysql"])
@pytest.mark.usefixtures("no_collector")
async def test_cancelled_handlers_leave_nothing_at_the_server(
    engine: Engine, db_url: str, effects: Callable[[], dict[str, int]], driver: str, orm: str
) -> None:
    rng = random.Random(20261117)
    async_engine = create_async_engine(db_url.replace("+pymysql", f"+{driver}"), pool_size=5, max_overflow=5)
    source: Any = async_sessionmaker(async_engine) if orm == "orm" else async_engine
    inbox = Inbox()
    cancelled = done = 0

    async def run(number: int) -> None:
        message = QueueMessage("orders", "billing", f"{number}-0", {})
        await effect_once_async(source, inbox, message, lambda session: effect(session, number))

    loop, window_s = asyncio.get_running_loop(), 0.05
    for start in range(0, HANDLERS, 20):
        tasks = [asyncio.create_task(run(number)) for number in range(start, start + 20)]
        for task in tasks:
            loop.call_later(rng.uniform(0, window_s), task.cancel)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends), ends
        done_now = ends.count(None)
        done, cancelled = done + done_now, cancelled + len(ends) - done_now
        # So that on a slow machine, too, a good part of them is cancelled at every stage.
        window_s *= 1.3 if done_now < len(ends) / 2 else 0.8
    pool: Any = async_engine.pool
    idle_connections = pool.checkedin()

    assert pool.checkedout() == 0
    assert not async_transaction._detached
    # The server notices a closed connection when it reads from it again: give it a moment, not a collector.
    await wait_until_async(lambda: at_the_server(engine)[1] == 0, message="no transaction left")
    # At most: the pool also counts the places of connections that were closed.
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


@pytest.fixture
def slow_commit(
    db_url: str, fault_proxy: Callable[[str], FaultProxy], request: pytest.FixtureRequest
) -> tuple[FaultProxy, AsyncEngine]:
    """Return an engine behind a proxy that keeps back the reply to the next COMMIT."""
    proxy = fault_proxy(db_url)
    url = proxy.url_for(db_url).replace("+pymysql", f"+{request.param}")
    return proxy, create_async_engine(url)


async def begin_commit(proxy: FaultProxy, async_engine: AsyncEngine) -> "asyncio.Task[bool]":
    """Return a handler that has sent its COMMIT."""
    async with async_engine.connect() as connection:
        await connection.execute(text("SELECT 1"))
    proxy.stall_next_reply(after_request_matching=b"COMMIT")
    message = QueueMessage("orders", "billing", "1-0", {})
    task = asyncio.create_task(effect_once_async(async_engine, Inbox(), message, lambda session: effect(session, 1)))
    await asyncio.to_thread(proxy.wait_for_fault)
    return task


both_drivers = pytest.mark.parametrize("slow_commit", ["asyncmy", "aiomysql"], indirect=True)


@both_drivers
async def test_a_commit_in_flight_is_waited_for_and_the_cancellation_is_kept(
    slow_commit: tuple[FaultProxy, AsyncEngine], effects: Callable[[], dict[str, int]]
) -> None:
    proxy, async_engine = slow_commit
    task = await begin_commit(proxy, async_engine)

    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=0.2)
    assert not done, "its COMMIT is under way"
    task.cancel()
    proxy.resume()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(effects().values()) == {1}
    assert async_engine.pool.checkedin() == 1, "the connection is as good as before"  # type: ignore[attr-defined]
    await async_engine.dispose()


@both_drivers
async def test_a_commit_without_a_reply_is_unknown_after_a_while(
    slow_commit: tuple[FaultProxy, AsyncEngine],
    effects: Callable[[], dict[str, int]],
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(async_transaction, "_LIMIT_S", 0.2)
    proxy, async_engine = slow_commit
    task = await begin_commit(proxy, async_engine)

    task.cancel()

    with pytest.raises(CommitUnknownError):
        await task
    assert async_engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    proxy.resume()
    await wait_until_async(lambda: at_the_server(engine)[1] == 0, message="no transaction left")
    assert set(effects().values()) == {1}, "it was committed after all, and the inbox knows"
    await async_engine.dispose()


@both_drivers
async def test_a_connection_that_arrives_too_late_is_closed(
    slow_commit: tuple[FaultProxy, AsyncEngine], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_transaction, "_CONNECT_LIMIT_S", 0.1)
    proxy, async_engine = slow_commit
    proxy.stall()

    async def work(_: object) -> None:
        pytest.fail("not reached")

    task = asyncio.create_task(
        effect_once_async(async_engine, Inbox(), QueueMessage("orders", "billing", "1-0", {}), work)
    )
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert async_transaction._detached, "it is still connecting"

    proxy.resume()
    while async_transaction._detached:
        await asyncio.wait(set(async_transaction._detached))
    assert async_engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    await wait_until_async(lambda: at_the_server(engine) == (0, 0), message="closed at the server")
    await async_engine.dispose()
