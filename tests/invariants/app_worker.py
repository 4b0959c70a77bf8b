"""Workers for test_effect_once_through_an_app: one handler of an ``App``, on Redis or RabbitMQ, dying at a named point.

Not a test. Forks and reports as ``session_worker`` does, and uses its points and its main loop. The handler knows
nothing of the broker. ``bug`` plants a mistake that the test has to find.
"""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from tests.invariants import session_worker, wire
from tests.invariants.session_worker import BUG, INSERT, SETTINGS, STALE_MS, at, note_delivery, noting_errors

from conquiet import App, AppSettings, RetryPolicy
from conquiet.processor import ProcessorSettings
from conquiet.runtime.settings import RuntimeSettings


@dataclass
class Number:
    n: int


class End:
    """A resource that is cleaned up after the commit."""


async def end() -> AsyncIterator[End]:
    yield End()
    at("after-commit")


async def effect(number: Number, session: AsyncSession, end: End) -> None:
    at("after-inbox")
    await session.execute(INSERT, {"m": number.n, "step": 1})
    if BUG == "commits-itself":
        raw = await (await session.connection()).get_raw_connection()
        assert raw.driver_connection is not None
        await raw.driver_connection.commit()  # below SQLAlchemy, which would refuse it
    at("mid-handler")
    await session.execute(INSERT, {"m": number.n, "step": 2})
    at("before-commit")


@contextlib.contextmanager
def noting(message: Any) -> Iterator[None]:
    """Note what a handler is given, and how it failed."""
    note_delivery(message)
    with noting_errors():
        yield


def decode(fields: dict[str, bytes]) -> dict[str, Any]:
    """Read the entries of the test, which are not messages of a processor."""
    return {"event": "number", "data": json.loads(fields["data"])}


def make_app() -> App:
    postgres = SETTINGS["db"].startswith("postgresql")
    connect: dict[str, Any] = (
        {"options": "-c lock_timeout=2s", "sslmode": "disable"}
        if postgres
        else {"init_command": "SET SESSION innodb_lock_wait_timeout=2"}
    )
    engine = create_async_engine(
        SETTINGS["db"].replace("+pymysql", "+asyncmy"), pool_pre_ping=True, connect_args=connect
    )
    on_redis = SETTINGS["broker"] == "redis"
    settings = AppSettings(
        processor=ProcessorSettings(retention=None),
        runtime=RuntimeSettings(claim_idle_ms=STALE_MS, block_ms=100),
        wait_s=120.0,
    )
    app = App(
        "storm",
        redis=SETTINGS["url"] if on_redis else None,
        rabbit=None if on_redis else SETTINGS["url"],
        database=async_sessionmaker(engine),
        stream=SETTINGS["source"],
        group="g",
        concurrency=4,
        decode=decode,
        settings=settings,
    )
    app.provide(End, end)
    once = BUG != "no-inbox"
    if on_redis:
        app.handler("number", retry=RetryPolicy.fixed(0.1, max_attempts=100), once=once)(effect)
    else:
        app.queue(SETTINGS["source"], once=once)(effect)
    return app


async def consume() -> None:
    session_worker.note_the_wire()
    wire.note_app_handlers(noting)
    app = make_app()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.stop)
    await app.run(["handlers"])


if __name__ == "__main__":
    session_worker.consume = consume
    session_worker.main()
