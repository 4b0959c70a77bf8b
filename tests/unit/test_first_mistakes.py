"""What somebody gets wrong on the first day is said before it costs a message, with what to do. No server is asked."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine

from conquiet import (
    Consumer,
    DbSession,
    Every,
    Inbox,
    Outbox,
    OutboxRelay,
    Processor,
    QueueConsumer,
    RabbitConsumer,
    ScheduleEntry,
    Scheduler,
    SyncEmitter,
    sync_queue,
)
from conquiet.errors import ConfigurationError, DbWriteError, LifecycleError, QueueError
from conquiet.processor import Emitter
from conquiet.queue.models import QueueMessage
from conquiet.redis_transport.client import clone_async
from conquiet.transactional import ToStream, for_processor, for_rabbit, for_runtime

NOBODY = redis.asyncio.Redis(port=1)
"""A client that is never asked."""
NOWHERE = "amqp://127.0.0.1:1"
ENTRY = ScheduleEntry("ping", Every(30), "host.ping", "ops")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """A database without conquiet's tables."""
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    yield made
    made.dispose()


def untyped(callee: Any) -> Any:
    """The same, with its types forgotten: mypy would tell who asks it, and not everybody does."""
    return callee


def nothing() -> None: ...


def three(_a: object, _b: object, _c: object) -> None: ...


@pytest.mark.parametrize("handler", [nothing, three])
@pytest.mark.parametrize(
    "give",
    [
        lambda handler, _: Consumer(streams=["orders"], redis=NOBODY, handler=handler),
        lambda handler, _: Processor(NOBODY, ["orders"]).handler("pay")(handler),
        lambda handler, _: RabbitConsumer(NOWHERE, "orders", handler),
        lambda handler, engine: for_runtime(handler, engine=engine, group="billing"),
        lambda handler, engine: for_processor(handler, engine=engine, group="billing"),
        lambda handler, engine: for_rabbit(handler, engine=engine, queue="orders", key=str),
    ],
    ids=["runtime", "processor", "rabbit", "for_runtime", "for_processor", "for_rabbit"],
)
def test_a_handler_that_cannot_take_what_it_is_called_with_is_refused(
    engine: Engine, give: Callable[[Any, Engine], object], handler: Any
) -> None:
    """Each message would fail: with the default policy of the processor, it would be dead-lettered."""
    with pytest.raises(ConfigurationError, match="parameters"):
        give(handler, engine)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda _: untyped(Consumer)(streams=["orders"], redis=NOBODY, handler=print, on_exhausted=nothing),
            r"on_exhausted\(message, ctx\) and cannot take that",
        ),
        (
            lambda _: untyped(Processor(NOBODY, ["orders"]).handler)(nothing),
            "event must be a non-empty string, got a function",
        ),
        (lambda _: untyped(SyncEmitter(NOBODY, "orders").emit_many)([{"event": "pay"}]), "NewMessage"),
        (lambda _: untyped(Scheduler)(NOBODY, ENTRY), r"put it into \[ \]"),
        (lambda _: untyped(Scheduler)(NOBODY, [{"name": "ping"}]), "a list of ScheduleEntry, got a dict"),
        (lambda _: untyped(QueueConsumer)(NOBODY, {"stream": "orders"}), "must be a QueueConfig"),
        (lambda _: untyped(Inbox)(key="order_id"), "key must be a function"),
        (lambda engine: Outbox().add(engine, "ledger", {}), "must be the session"),
        (lambda engine: untyped(OutboxRelay)(engine, {"ledger": engine}), "ToStream, ToProcessor, ToRabbit"),
        (lambda engine: untyped(OutboxRelay)(engine, ["ledger"]), "ToStream, ToProcessor, ToRabbit"),
        (lambda engine: untyped(OutboxRelay)(engine, {"ledger": ToStream}), "ToStream, ToProcessor, ToRabbit"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(engine: Engine, make: Callable[[Any], object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make(engine)


def test_missing_tables_are_reported_with_the_remedy(engine: Engine) -> None:
    message = QueueMessage("orders", "billing", "1-0", {})

    remedy = r"conquiet_inbox does not exist.*create_tables\(engine\).*conquiet db init"
    with pytest.raises(DbWriteError, match=remedy), DbSession(engine) as session, Inbox().once(session, message):
        pass
    with pytest.raises(DbWriteError, match="conquiet_outbox does not exist"), DbSession(engine) as session:
        Outbox().add(session, "ledger", {"cents": 1})


async def test_a_process_of_its_own_is_not_begun_inside_an_event_loop() -> None:
    with pytest.raises(LifecycleError, match=r"await RabbitConsumer\(\.\.\.\)\.run\(\)"):
        sync_queue(NOWHERE, "orders", lambda _: True)


def test_an_emitter_in_a_second_event_loop_says_so_instead_of_that_the_first_is_closed() -> None:
    emitter = Emitter(clone_async(NOBODY), "orders")

    async def emit() -> None:
        await emitter.emit("pay")

    with pytest.raises(QueueError, match="ConnectionError"):
        asyncio.run(emit())
    with pytest.raises(LifecycleError, match="another event loop"):
        asyncio.run(emit())


def test_a_relay_without_its_table_says_so_at_every_attempt(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on trying, as when the database is away: what is wrong has to be in the log."""
    relay = OutboxRelay(engine, {"ledger": untyped(SimpleNamespace(publish=list))})
    monkeypatch.setattr(relay, "_sleep", lambda _: relay.stop())

    with pytest.raises(DbWriteError, match=r"conquiet_outbox does not exist.*conquiet db init"):
        relay.relay_once()
    relay.run()

    (record,) = caplog.records
    assert "the table conquiet_outbox does not exist" in record.__dict__["reason"]
