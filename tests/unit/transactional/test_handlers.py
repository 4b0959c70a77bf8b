"""Handlers for the engines: where the group and the queue come from, and which inboxes they take."""

import asyncio
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import create_async_engine
from tests.unit.transactional.deliveries import from_processor, from_rabbit, from_runtime
from tests.unit.transactional.outbox_rows import MESSAGE, rows

from conquiet.db.session import DbSession
from conquiet.errors import (
    CommitUnknownError,
    ConfigurationError,
    ConflictError,
    DatabaseUnavailableError,
    InfrastructureError,
    LeaseLostError,
    LifecycleError,
    QueueError,
)
from conquiet.processor import Processor
from conquiet.rabbit import RabbitConsumer
from conquiet.rabbit.syncer import Postpone
from conquiet.runtime import Consumer
from conquiet.transactional import (
    Inbox,
    InboxKey,
    LeaseCheck,
    Outbox,
    for_processor,
    for_processor_batch,
    for_processor_shared_transaction,
    for_rabbit,
    for_runtime,
    for_runtime_batch,
)
from conquiet.transactional.handlers import effect_once, effect_once_async


def write(_: Any, session: DbSession) -> None:
    Outbox().add(session, "effect", {})


def effects(engine: Engine) -> int:
    with DbSession(engine) as session:
        return int(session.execute_scalar("SELECT COUNT(*) FROM conquiet_outbox"))


def inbox_rows(engine: Engine) -> set[tuple[str, str, str]]:
    with DbSession(engine) as session:
        rows = session.fetch_all("SELECT source, consumer_group, message_id FROM conquiet_inbox")
    return {
        (bytes(row["source"]).decode(), bytes(row["consumer_group"]).decode(), bytes(row["message_id"]).decode())
        for row in rows
    }


def engines(engine: Engine, name: str) -> list[Callable[[], object]]:
    """Makers of each engine for the group or queue ``mine``, with a handler that was made for ``name``."""
    client = redis.asyncio.Redis(port=1)

    def wrapped() -> Any:
        inner = for_runtime(write, engine=engine, group=name)

        @functools.wraps(inner)
        def traced(message: Any, ctx: Any) -> None:
            inner(message, ctx)

        return traced

    return [
        lambda: Consumer(
            streams=["s"], redis=client, handler=for_runtime(write, engine=engine, group=name), group="mine"
        ),
        lambda: Consumer(streams=["s"], redis=client, handler=wrapped(), group="mine"),
        lambda: Processor(client, ["s"], group="mine").handler("e")(for_processor(write, engine=engine, group=name)),
        lambda: RabbitConsumer("amqp://127.0.0.1:1", "mine", for_rabbit(write, engine=engine, queue=name)),
    ]


# ------------------------------------------------------------------ the pool
def starts(engine: Engine, concurrency: int) -> list[Callable[[], object]]:
    """Return what starts each engine, as far as it gets without a server."""

    def processor(own: int | None = None) -> Processor:
        made = Processor(redis.asyncio.Redis(port=1), ["s"], concurrency=concurrency)
        made.handler("e", concurrency=own)(for_processor(write, engine=engine))
        return made

    def run(made: Any) -> None:
        with pytest.raises(QueueError):
            asyncio.run(made.start())

    return [
        lambda: run(
            Consumer(
                streams=["s"],
                redis=redis.asyncio.Redis(port=1),
                handler=for_runtime(write, engine=engine),
                concurrency=concurrency,
            )
        ),
        lambda: run(processor()),
        lambda: run(processor(own=concurrency + 7)),
        lambda: RabbitConsumer("amqp://127.0.0.1:1", "q", for_rabbit(write, engine=engine), concurrency=concurrency),
    ]


def pool_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "pool" in record.getMessage()]


async def pays(*_: Any) -> None:
    raise AssertionError("not awaited")


class Pays:
    async def __call__(self, *_: Any) -> None:
        raise AssertionError("not awaited")


# ------------------------------------------------------------------ the group and the queue
def test_the_group_and_the_queue_come_from_the_engine(engine: Engine) -> None:
    from_runtime(for_runtime(write, engine=engine), group="billing")
    from_processor(for_processor(write, engine=engine), group="mailing")
    assert from_rabbit(for_rabbit(write, engine=engine), queue="ledger") is True

    assert inbox_rows(engine) == {("s", "billing", "1-0"), ("s", "mailing", "j-1"), ("ledger", "", "m-1")}


def test_two_groups_on_one_stream_have_an_effect_each(engine: Engine) -> None:
    handle = for_runtime(write, engine=engine)

    for group in ("billing", "mailing", "billing"):
        from_runtime(handle, group=group)

    assert effects(engine) == 2


@pytest.mark.parametrize(
    ("make", "deliver"),
    [
        (functools.partial(for_runtime, group="mine"), functools.partial(from_runtime, group="theirs")),
        (functools.partial(for_processor, group="mine"), functools.partial(from_processor, group="theirs")),
        (functools.partial(for_rabbit, queue="mine"), functools.partial(from_rabbit, queue="theirs")),
    ],
    ids=["runtime", "processor", "rabbit"],
)
def test_a_name_that_disagrees_is_refused_before_the_handler_runs(
    engine: Engine, make: Callable[..., Any], deliver: Callable[..., Any]
) -> None:
    """The handler may be called by a function of the user, which no engine can inspect at its start."""
    with pytest.raises(ConfigurationError, match=r"'mine' .* 'theirs'"):
        deliver(make(write, engine=engine))

    assert effects(engine) == 0
    assert inbox_rows(engine) == set()


def test_a_handler_of_another_group_or_queue_is_refused_at_start(engine: Engine) -> None:
    for make in engines(engine, "theirs"):
        with pytest.raises(ConfigurationError, match=r"'theirs' .* 'mine'.*comes from the engine"):
            make()
    for make in engines(engine, "mine"):
        make()


@pytest.mark.parametrize("name", ["", 5])
def test_a_group_or_queue_that_is_no_name_is_refused(engine: Engine, name: Any) -> None:
    for make in (
        functools.partial(for_runtime, group=name),
        functools.partial(for_processor, group=name),
        functools.partial(for_rabbit, queue=name),
    ):
        with pytest.raises(ConfigurationError):
            make(write, engine=engine)


def test_a_syncer_without_a_queue_works_inside_a_consumer_only(engine: Engine) -> None:
    with pytest.raises(LifecycleError):
        for_rabbit(write, engine=engine, key=lambda _: "k")({})

    assert for_rabbit(write, engine=engine, queue="q", key=lambda _: "k")({}) is True


# ------------------------------------------------------------------ inbox objects
def test_an_inbox_object_is_taken_where_a_table_name_is(engine: Engine) -> None:
    inbox = Inbox(key=lambda known: f"order-{known.payload['order']}")

    for _ in range(2):
        from_runtime(for_runtime(write, engine=engine, inbox=inbox), data={"order": 1})
        from_processor(for_processor(write, engine=engine, inbox=inbox), data={"order": 2})
        from_rabbit(for_rabbit(write, engine=engine, inbox=inbox), {"order": 3}, id=None)

    assert effects(engine) == 3
    assert inbox_rows(engine) == {("s", "g", "order-1"), ("s", "g", "order-2"), ("q", "", "order-3")}


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(
    "make",
    [for_runtime, for_processor, for_runtime_batch, for_processor_batch, for_processor_shared_transaction],
    ids=lambda make: make.__name__,
)
async def test_every_form_of_a_handler_uses_the_inbox_object_it_is_given(
    engine: Engine, make: Callable[..., Any], *, is_async: bool
) -> None:
    """By its key function: two ids of one order are one effect, and the row has the name of the order."""
    inbox = Inbox(key=lambda known: f"order-{known.payload['order']}")
    runs: list[object] = []

    def plain(given: Any, _session: Any) -> None:
        runs.append(given)

    async def awaited(given: Any, _session: Any) -> None:
        runs.append(given)

    source: Any = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite")) if is_async else engine
    handle = make(awaited if is_async else plain, engine=source, inbox=inbox)
    for number in (1, 2):
        lease = SimpleNamespace(group="g", stream="s", check_lease=lambda: None)
        message = SimpleNamespace(stream="s", id=f"{number}-0", data={"order": 7}, raw=b"{}")
        job = SimpleNamespace(id=f"j-{number}", event="paid", data={"order": 7}, group="g", delivery=lease)
        given: list[Any] = [message, lease] if make in {for_runtime, for_runtime_batch} else [job]
        if make not in {for_runtime, for_processor}:
            given = [[one] for one in given]
        result = handle(*given)
        if is_async:
            await result
    if is_async:
        await source.dispose()

    assert len(runs) == 1
    assert inbox_rows(engine) == {("s", "g", "order-7")}


def test_a_lease_check_is_taken_as_well(engine: Engine) -> None:
    handle = for_runtime(write, engine=engine, inbox=LeaseCheck(lambda _: False, Inbox()))

    with pytest.raises(LeaseLostError):
        from_runtime(handle)
    assert effects(engine) == 0


def test_one_key_for_two_ways_in_is_shared(engine: Engine) -> None:
    inbox = Inbox(key=lambda known: InboxKey("orders", "", str(known.payload["order"])))

    from_runtime(for_runtime(write, engine=engine, inbox=inbox), data={"order": 1})
    from_rabbit(for_rabbit(write, engine=engine, inbox=inbox), {"order": 1})

    assert effects(engine) == 1


@pytest.mark.parametrize("wrong", [Inbox, object(), None, 5])
def test_an_object_that_is_not_an_inbox_is_refused(engine: Engine, wrong: Any) -> None:
    for make in (for_runtime, for_processor, for_rabbit):
        with pytest.raises(ConfigurationError, match="inbox must be"):
            make(write, engine=engine, inbox=wrong)


@pytest.mark.parametrize("wrong", [None, Inbox, object()])
async def test_an_effect_with_an_object_that_is_not_an_inbox_is_refused(engine: Engine, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="inbox must be"):
        effect_once(engine, wrong, MESSAGE, lambda session: write(None, session))
    with pytest.raises(ConfigurationError, match="inbox must be"):
        await effect_once_async(create_async_engine("sqlite+aiosqlite://"), wrong, MESSAGE, asyncio.sleep)

    assert effects(engine) == 0


def test_an_effect_by_the_name_of_the_inbox_table_happens_once(engine: Engine) -> None:
    ran = [effect_once(engine, "conquiet_inbox", MESSAGE, lambda session: write(None, session)) for _ in range(2)]

    assert (ran, effects(engine)) == ([True, False], 1)


def test_a_key_together_with_an_inbox_object_is_refused(engine: Engine) -> None:
    for make in (for_runtime, for_processor, for_rabbit):
        with pytest.raises(ConfigurationError, match="not both"):
            make(write, engine=engine, inbox=Inbox(), key=lambda _: "k")


# ------------------------------------------------------------------ errors that are not the message's fault
@pytest.mark.parametrize(
    "error", [DatabaseUnavailableError("away"), CommitUnknownError("unknown"), InfrastructureError("no mail server")]
)
def test_an_infrastructure_error_reaches_every_engine_unchanged(engine: Engine, error: Exception) -> None:
    def fail(_: Any, _session: DbSession) -> None:
        raise error

    for make, deliver in ((for_runtime, from_runtime), (for_processor, from_processor), (for_rabbit, from_rabbit)):
        with pytest.raises(InfrastructureError) as caught:
            deliver(make(fail, engine=engine))
        assert caught.value is error


def test_an_infrastructure_error_of_the_inbox_row_reaches_every_engine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = DatabaseUnavailableError("read-only", errno=1290)

    def fail(*_: Any) -> int:
        raise error

    monkeypatch.setattr(DbSession, "execute", fail)
    for make, deliver in ((for_runtime, from_runtime), (for_processor, from_processor), (for_rabbit, from_rabbit)):
        with pytest.raises(DatabaseUnavailableError) as caught:
            deliver(make(write, engine=engine))
        assert caught.value is error


def test_a_conflict_on_the_inbox_row_is_requeued_without_counting(engine: Engine) -> None:
    """Another run of the message is not over. Counted, it would be dead-lettered while that run commits."""
    impatient = create_engine(engine.url, connect_args={"timeout": 0.1})
    syncer = for_rabbit(write, engine=impatient)

    with DbSession(engine) as session:
        Inbox().record(session, InboxKey("q", "", "m-1"))
        with pytest.raises(Postpone) as caught:
            from_rabbit(syncer)
        assert isinstance(caught.value.__cause__, ConflictError)

    assert from_rabbit(syncer) is True
    assert effects(engine) == 0, "the other run has done it"
    impatient.dispose()


def test_a_conflict_of_the_handlers_own_counts_as_an_attempt(engine: Engine) -> None:
    def conflicting(_: Any, session: DbSession) -> None:
        write(_, session)
        raise ConflictError("a stale version")

    assert from_rabbit(for_rabbit(conflicting, engine=engine)) is False
    assert effects(engine) == 0
    assert inbox_rows(engine) == set()


def test_a_pool_smaller_than_the_concurrency_is_reported_at_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    small = create_engine("mysql+pymysql://127.0.0.1:1/none", pool_size=10, max_overflow=5)

    for start in starts(small, 16):
        caplog.clear()
        start()
        (line,) = pool_warnings(caplog)
        assert "concurrency is 16" in line
        assert "at most 15 connections" in line
        assert "create_engine with pool_size=16" in line


def test_a_pool_of_the_size_of_the_concurrency_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    enough = create_engine("mysql+pymysql://127.0.0.1:1/none", pool_size=10, max_overflow=5)

    for start in starts(enough, 15):
        start()

    assert pool_warnings(caplog) == []


@pytest.mark.parametrize("function", [pays, Pays(), functools.partial(pays, 1)])
def test_a_coroutine_function_is_refused_before_any_message(engine: Engine, function: Callable[..., Any]) -> None:
    makers: list[Callable[[], object]] = [
        lambda: for_runtime(function, engine=engine, group="g"),
        lambda: for_processor(function, engine=engine, group="g"),
        lambda: for_rabbit(function, engine=engine, queue="q", key=str),
        lambda: LeaseCheck(function),
    ]
    for make in makers:
        with pytest.raises(ConfigurationError, match="plain function"):
            make()


def test_a_coroutine_from_a_plain_function_leaves_no_inbox_row(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="not done"):
        effect_once(engine, Inbox(), MESSAGE, lambda _: pays())
    handler = for_rabbit(lambda _message, _session: pays(), engine=engine, queue="q", key=lambda _: "k")  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigurationError, match="not done"):
        handler({})

    assert rows(engine, "conquiet_inbox") == 0
