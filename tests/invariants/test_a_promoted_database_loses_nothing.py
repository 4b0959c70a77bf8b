"""A PostgreSQL primary is demoted or killed, and its replica is promoted, while an application works.

The application knows both servers by one URL (``host=…&host=…&target_session_attrs=read-write``), as libpq offers it.

    switched    the primary refuses writes; its replica has everything, and is promoted
    killed      the primary dies; its replica, which has confirmed each commit, is promoted

Writes fail meanwhile with ``DatabaseUnavailableError``, consumption pauses, connections are renewed, and no attempt is
charged: each message has its effect once, at its first attempt. ``CONQUIET_TORTURE=1`` makes it 20 promotions.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import pytest
import redis
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert
from sqlalchemy.orm import Session
from tests.invariants import wire
from tests.invariants.histories import History, Row, database_facts, redis_facts, seed_or

from conquiet import App, AppSettings, JobContext
from conquiet.core.backoff import Backoff
from conquiet.processor import Processor, ProcessorSettings, RetryPolicy
from conquiet.runtime import RuntimeSettings
from conquiet.testing import wait_until, wait_until_async
from conquiet.testing.databases import execute
from conquiet.testing.postgres import PostgresServer

TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
PROMOTIONS = 20 if TORTURE else 1
RENEWED_S = 30
"""Longest outage. It takes a second; without a renewed pool, most of a minute."""
METADATA = MetaData()
EFFECTS = Table("effects", METADATA, Column("row", Integer, primary_key=True), Column("id", String(40), nullable=False))


class AnyPair(Protocol):
    """A primary with a replica that has confirmed each commit before its client gets the reply."""

    product: str

    @property
    def url(self) -> str:
        """The address at which an application finds the current primary."""

    def switch(self) -> None:
        """Demote the primary, wait until its replica has everything, and promote that."""

    def kill(self) -> None:
        """Kill the primary, and promote its replica."""

    def rejoin(self) -> None:
        """Give the new primary a replica."""

    def effects(self) -> list[str]:
        """Return the effects that the primary has now."""


class Pair:
    """Two PostgreSQL servers."""

    product = "PostgreSQL"

    def __init__(self, primary: PostgresServer, replica: PostgresServer) -> None:
        self.primary, self.replica = primary, replica
        replica.follow(primary)
        self.synchronise()

    @property
    def url(self) -> str:
        hosts = "&".join(f"host={server.host}:{server.port}" for server in (self.primary, self.replica))
        return f"postgresql+psycopg://postgres@/postgres?{hosts}&target_session_attrs=read-write&connect_timeout=5"

    def synchronise(self) -> None:
        """Let the primary wait for its replica, once that is connected."""
        one_row = "SELECT 1 / count(*) FROM pg_stat_replication WHERE state = 'streaming'"
        wait_until(lambda: _succeeds(self.primary, one_row))
        execute(self.primary.url, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        execute(self.primary.url, "SELECT pg_reload_conf()")

    def switch(self) -> None:
        """Demote the primary, wait until its replica has everything, and promote that."""
        old = self.primary
        execute(old.url, "ALTER SYSTEM SET default_transaction_read_only = on")
        execute(old.url, "SELECT pg_reload_conf()")
        caught_up = "SELECT 1 / count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"
        wait_until(lambda: _succeeds(old, caught_up))
        self._promote()

    def kill(self) -> None:
        """Kill the primary, and promote its replica."""
        self.primary.kill()
        self._promote()

    def _promote(self) -> None:
        self.primary, self.replica = self.replica, self.primary
        self.primary.promote()

    def rejoin(self) -> None:
        """Let the old primary follow the new one."""
        self.replica.follow(self.primary)
        self.synchronise()

    def effects(self) -> list[str]:
        """Return the effects that the primary has now."""
        import psycopg

        with psycopg.connect(self.primary.url.replace("+psycopg", ""), connect_timeout=10) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM effects ORDER BY row")]


def _succeeds(server: PostgresServer, statement: str) -> bool:
    try:
        execute(server.url, statement)
    except Exception:  # noqa: BLE001 - a division by zero, or no server yet
        return False
    return True


async def emit_until(stop: asyncio.Event, sender: Processor, history: History) -> list[str]:
    sent: list[str] = []
    while not stop.is_set():
        name = f"m-{len(sent)}"
        await sender.emit("effect", {"id": name}, id=name)
        history.record("enqueue", id=name)
        sent.append(name)
        await asyncio.sleep(0.02)
    return sent


@pytest.mark.timeout(1_800)
async def test_an_application_goes_on_with_the_promoted_replica(
    private_postgres: Callable[..., PostgresServer],
    redis_url: str,
    key_prefix: str,
    new_history: Callable[..., History],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"synchronous_commit": "remote_apply"}
    pair = await asyncio.to_thread(Pair, private_postgres(settings=settings), private_postgres(settings=settings))
    await promote_under_work(pair, PROMOTIONS, redis_url, key_prefix, new_history, monkeypatch.setattr)


async def promote_under_work(
    pair: AnyPair,
    promotions: int,
    redis_url: str,
    key_prefix: str,
    new_history: Callable[..., History],
    patch: wire.Patch,
) -> None:
    """Promote the replica of a pair again and again, while an application works, and judge the history."""
    engine = create_engine(pair.url)
    METADATA.create_all(engine)
    client: Any = redis.Redis.from_url(redis_url, decode_responses=True)
    history = new_history(
        f"a {pair.product} replica promoted",
        Row("App", f"{pair.product}: a primary and a synchronous replica", "one Redis"),
        seed=seed_or(3),
        promise={"effects": "once", "attempts": True, "commits": True},
        servers=[database_facts(engine), redis_facts(client)],
    )

    @contextlib.contextmanager
    def noting(ctx: JobContext) -> Iterator[None]:
        history.record("deliver", id=ctx.id, n=ctx.attempt)
        wire.handle(ctx.id)
        yield

    wire.note_commits(history.record, patch)
    wire.note_stream_acks(history.record, lambda messages: [message.data["id"] for message in messages], patch)
    wire.note_app_handlers(noting, patch)
    runtime = RuntimeSettings(claim_idle_ms=5_000, outage=Backoff(base_s=0.05, cap_s=0.5))
    app = App(
        f"{key_prefix}bank",
        redis=redis_url,
        database=pair.url,
        concurrency=4,
        settings=AppSettings(runtime=runtime, processor=ProcessorSettings(retention=None), relay_poll_s=0.2),
    )
    await asyncio.to_thread(app.create_tables)

    @app.handler("effect", retry=RetryPolicy.fixed(0.05, max_attempts=3))
    def effect(data: dict[str, Any], session: Session) -> None:
        session.execute(insert(EFFECTS).values(id=data["id"]))

    sender = Processor(client, [app.assembly.stream])
    stop = asyncio.Event()
    async with app:
        emitting = asyncio.create_task(emit_until(stop, sender, history))
        await wait_until_async(lambda: len(pair.effects()) > 10)
        for number in range(promotions):
            change = pair.switch if number % 2 == 0 else pair.kill
            with history.outage(f"primary {change.__name__}ed"):
                await asyncio.to_thread(change)
                before = await asyncio.to_thread(lambda: len(pair.effects()))
                # Before the old primary ends: the application must leave a primary that only refuses writes.
                await wait_until_async(partial(has_more_effects, pair, before + 5), timeout_s=RENEWED_S)
            await asyncio.to_thread(pair.rejoin)
        history.recovery()
        stop.set()
        sent = set(await emitting)
        await wait_until_async(lambda: sent <= set(pair.effects()), timeout_s=120)
        history.record("drained")
        dead = client.xlen(f"{{{app.assembly.stream}}}:dead")
    await sender.close()
    client.close()
    engine.dispose()
    history.record("state", effects=pair.effects(), left={"dead letters": dead})

    assert history.judge()["examples"] == {}


def has_more_effects(pair: AnyPair, than: int) -> bool:
    """Return whether the primary has more effects than that."""
    return len(pair.effects()) > than
