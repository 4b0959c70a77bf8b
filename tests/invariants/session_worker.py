"""Workers for test_effect_once_for_each_session: each kind of session, on Redis or RabbitMQ, dying at a named point.

Not a test. A zygote with everything imported; it forks a worker for each line it reads and reports how that ended.

    → {"point": "mid-handler", "nth": 3}      the third time it comes there it kills itself
    ← {"ended": 9}

The point ``pause`` stops the worker past the claim threshold instead, while another one takes its message over. A point
of null runs until SIGTERM. ``bug`` plants a mistake that the test has to find.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import redis.asyncio
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from tests.invariants import wire
from tests.invariants.preloading import preload
from tests.invariants.recorder import Recorder

from conquiet.db.session import DbSession
from conquiet.rabbit import RabbitConsumer, SchemaRegistry
from conquiet.runtime import Consumer
from conquiet.transactional import Inbox, for_rabbit, for_runtime
from conquiet.transactional.async_transaction import AsyncTransaction

SETTINGS: dict[str, Any] = json.loads(sys.argv[1])
BUG: str = SETTINGS["bug"]
record = Recorder(SETTINGS["history"])
IS_ASYNC = SETTINGS["kind"] == "AsyncSession"
STALE_MS = 500
PAUSE_S = 1.5

_point: str | None = None
_left = 0


def at(point: str) -> None:
    """Die or pause here if it is our point and our turn."""
    global _left  # noqa: PLW0603 - one worker, one counter
    if point != ("mid-handler" if _point == "pause" else _point):
        return
    _left -= 1
    if _left == 0:
        record("reached", point=_point)
        record("fault", kind="SIGSTOP" if _point == "pause" else "kill -9", target=os.getpid(), point=_point)
        os.kill(os.getpid(), signal.SIGSTOP if _point == "pause" else signal.SIGKILL)


INSERT = text("INSERT INTO effect (message, step) VALUES (:m, :step)")


def handle(message: Any, session: Any) -> None:
    number = _number_of(message)
    at("after-inbox")
    session.execute(INSERT, {"m": number, "step": 1})
    if BUG == "orm-commit":
        session.connection().connection.commit()  # below SQLAlchemy, which would refuse it
    at("mid-handler")
    session.execute(INSERT, {"m": number, "step": 2})
    at("before-commit")


async def handle_async(message: Any, session: Any) -> None:
    number = _number_of(message)
    at("after-inbox")
    await session.execute(INSERT, {"m": number, "step": 1})
    if BUG == "orm-commit":
        raw = await (await session.connection()).get_raw_connection()
        await raw.driver_connection.commit()
    at("mid-handler")
    await session.execute(INSERT, {"m": number, "step": 2})
    at("before-commit")


def _number_of(message: Any) -> int:
    data = message if isinstance(message, dict) else message.data
    return int(data.get("data", data)["n"])  # of an App it is in an envelope


class SecondConnection(Inbox):
    """The planted bug: the row is committed separately, before the effect."""

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self._engine = engine

    def once(self, session: Any, msg: Any) -> Any:
        del session
        return self._async(msg) if IS_ASYNC else self._sync(msg)

    @contextlib.contextmanager
    def _sync(self, msg: Any) -> Iterator[bool]:
        with DbSession(self._engine) as other, super().once(other, msg) as first_time:
            pass
        yield first_time

    @contextlib.asynccontextmanager
    async def _async(self, msg: Any) -> AsyncIterator[bool]:
        async with AsyncTransaction(self._engine) as other, super().once(other, msg) as first_time:
            pass
        yield first_time


@contextlib.contextmanager
def noting_errors() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        record("error", text=type(error).__name__)
        raise


def note_delivery(message: Any) -> None:
    number = _number_of(message)
    record("deliver", id=number)
    if SETTINGS["broker"] != "redis":
        wire.delivered(number)
    wire.handle(number)


def make_handler(adapter: Any) -> Any:
    options: dict[str, Any]
    without_tls: dict[str, Any]
    # Without TLS: the proxy has to find the word COMMIT.
    if SETTINGS["db"].startswith("postgresql"):
        options = without_tls = {"options": "-c lock_timeout=2s", "sslmode": "disable"}
    else:
        options = {"init_command": "SET SESSION innodb_lock_wait_timeout=2"}
        without_tls = {**options, "ssl_disabled": True}
    if IS_ASYNC:
        engine: Any = create_async_engine(
            SETTINGS["db"].replace("+pymysql", "+asyncmy"), pool_pre_ping=True, connect_args=options
        )
        source: Any = async_sessionmaker(engine)
    else:
        engine = create_engine(SETTINGS["db"], pool_pre_ping=True, connect_args=without_tls)
        source = sessionmaker(engine) if SETTINGS["kind"] == "Session" else engine
    inbox = SecondConnection(engine) if BUG == "second-connection" else Inbox()
    inner = adapter(handle_async if IS_ASYNC else handle, engine=source, inbox=inbox)
    if IS_ASYNC:

        async def outer_async(*arguments: Any) -> Any:
            note_delivery(arguments[0])
            with noting_errors():
                result = await inner(*arguments)
            at("after-commit")
            return result

        return outer_async

    def outer(*arguments: Any) -> Any:
        note_delivery(arguments[0])
        with noting_errors():
            result = inner(*arguments)
        at("after-commit")
        return result

    return outer


def note_the_wire() -> None:
    """Note commits and acknowledgements in the history."""
    wire.note_commits(record)
    wire.note_stream_acks(record, lambda messages: [_number_of(message) for message in messages])
    wire.note_queue_acks(record)


async def consume() -> None:
    note_the_wire()
    loop = asyncio.get_running_loop()
    if SETTINGS["broker"] == "redis":
        client = redis.asyncio.Redis.from_url(SETTINGS["url"])
        consumer: Any = Consumer(
            streams=[SETTINGS["source"]],
            redis=client,
            handler=make_handler(for_runtime),
            group="g",
            concurrency=4,
            claim_idle_ms=STALE_MS,
            block_ms=100,
        )
    else:
        schemas = SchemaRegistry(built_in=False).register_default()
        consumer = RabbitConsumer(
            SETTINGS["url"], SETTINGS["source"], make_handler(for_rabbit), schemas=schemas, concurrency=4
        )
    loop.add_signal_handler(signal.SIGTERM, consumer.stop)
    await (consumer.start() if SETTINGS["broker"] == "redis" else consumer.run())


def main() -> None:
    global _point, _left  # set once in each child
    preload(SETTINGS["db"], driver="asyncmy" if IS_ASYNC else "")
    # For a worker that is stopped before it has its own handler: it has done nothing yet.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _point, _left = order["point"], order["nth"]
            record.watch(STALE_MS / 4_000)
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(consume())
            os._exit(0)
        print(json.dumps({"pid": pid}), flush=True)  # noqa: T201 - the test reads it
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            time.sleep(PAUSE_S)
            record("resume", target=pid)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.3)
            record("fault", kind="kill -9", target=pid, point="pause")
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            status = signal.SIGSTOP
        print(json.dumps({"ended": int(status)}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
