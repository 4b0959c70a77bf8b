"""Bad use of an App: each with its sentence, when it is declared or at the start."""

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from conquiet import App, AppSettings, DbSession, Emit, Every, JobContext, SyncEmit
from conquiet.core.lifecycle import Worker
from conquiet.core.worker_pool import WorkerPool
from conquiet.errors import ConfigurationError, LifecycleError

NOWHERE = "redis://127.0.0.1:1/0"


@dataclass
class OrderPaid:
    order_id: str


@pytest.fixture(autouse=True)
def no_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CONQUIET_REDIS_URL", "CONQUIET_DB_URL", "CONQUIET_RABBIT_URL", "CONQUIET_CONFIG"):
        monkeypatch.delenv(name, raising=False)


async def handle(order: OrderPaid) -> None:
    raise AssertionError


def test_a_decorated_function_stays_as_it_is() -> None:
    app = App("shop")

    assert app.handler("order.paid")(handle) is handle
    assert app.schedule(Every(60))(no_payload) is no_payload
    assert app.queue("orders")(handle) is handle


async def no_payload() -> None:
    raise AssertionError


@pytest.mark.parametrize("decorator", ["handler", "queue", "schedule"])
def test_a_decorator_without_its_argument_is_refused(decorator: str) -> None:
    """The function would be replaced by a decorator, and nothing would ever run."""
    with pytest.raises(ConfigurationError, match=r"(event|name|when) must be"):
        getattr(App("shop"), decorator)(no_payload)


@pytest.mark.parametrize("decorator", ["handler", "queue"])
def test_a_handler_that_is_no_function_is_refused(decorator: str) -> None:
    """Messages for a class would be acknowledged: a call only creates an object."""

    class Book:
        async def __call__(self, order: OrderPaid) -> None:
            raise AssertionError

    register = getattr(App("shop"), decorator)("order.paid")

    with pytest.raises(ConfigurationError, match=r"must be a function, not the class .*Book: a call only creates"):
        register(Book)
    with pytest.raises(ConfigurationError, match=r"must be a function, not an object of the class .*Book"):
        register(Book())
    with pytest.raises(ConfigurationError, match="must be a function, not an object of the class partial"):
        register(partial(handle))


async def test_an_app_without_a_handler_is_not_run() -> None:
    with pytest.raises(ConfigurationError, match="the app has no handler, so there is nothing to run: register one"):
        await App("shop", redis=NOWHERE).run()


def test_an_event_has_one_handler() -> None:
    app = App("shop")
    app.handler("order.paid")(handle)

    with pytest.raises(ConfigurationError, match=r"'order.paid' has a handler already, .*handle: an event has one"):
        app.handler("order.paid")(handle)


def test_a_parameter_without_a_source_is_refused_by_name() -> None:
    class Mailer:
        pass

    async def send(order: OrderPaid, mailer: Mailer) -> None:
        raise AssertionError

    with pytest.raises(ConfigurationError, match=r"parameter 'mailer' of the handler of 'order.paid' has no source"):
        App("shop").handler("order.paid")(send)


def test_a_session_without_a_database_is_refused() -> None:
    async def book(order: OrderPaid, session: AsyncSession) -> None:
        raise AssertionError

    with pytest.raises(
        ConfigurationError, match=r"parameter 'session' of the handler of 'order.paid'.*no database: give App\("
    ):
        App("shop", redis=NOWHERE).handler("order.paid")(book)


def test_a_session_of_the_other_kind_than_the_engine_is_refused() -> None:
    def book(session: Session) -> None:
        raise AssertionError

    async def book_async(session: AsyncSession) -> None:
        raise AssertionError

    engine, async_engine = create_engine("sqlite://"), create_async_engine("sqlite+aiosqlite://")

    for database in (async_engine, async_sessionmaker(async_engine)):
        with pytest.raises(ConfigurationError, match="app's database is an asynchronous engine: ask for AsyncSession"):
            App("shop", database=database).handler("order.paid")(book)
    for sync_database in (engine, sessionmaker(engine)):
        with pytest.raises(ConfigurationError, match="app's database is a synchronous engine: ask for Session, Conn"):
            App("shop", database=sync_database).handler("order.paid")(book_async)


@pytest.mark.parametrize("database", [3, "nonsense", object()])
def test_something_that_is_no_database_is_refused(database: Any) -> None:
    with pytest.raises(ConfigurationError, match="database"):
        App("shop", database=database)


def test_an_emit_of_the_other_kind_than_the_function_is_refused() -> None:
    def plain(emit: Emit) -> None:
        raise AssertionError

    async def asynchronous(emit: SyncEmit) -> None:
        raise AssertionError

    with pytest.raises(ConfigurationError, match=r"'emit' .* is an Emit, which a plain function cannot await"):
        App("shop").handler("a")(plain)
    with pytest.raises(ConfigurationError, match=r"'emit' .* is a SyncEmit, which blocks the event loop"):
        App("shop").handler("a")(asynchronous)


async def test_a_typo_in_an_event_is_refused_with_the_right_name() -> None:
    app = App("shop", redis=NOWHERE)
    app.handler("order.paid")(handle)

    with pytest.raises(ConfigurationError, match=r"did you mean 'order.paid'\?"):
        await app.emit("order.payd", OrderPaid("a"))
    with pytest.raises(ConfigurationError, match=r"did you mean 'order.paid'\?"):
        app.emit_sync("order.payd", OrderPaid("a"))


@pytest.mark.parametrize("session", [None, object()])
def test_an_option_that_emit_does_not_have_is_refused(session: Any) -> None:
    app = App("shop", redis=NOWHERE)
    app.handler("order.paid")(handle)

    with pytest.raises(TypeError, match="emit got an unexpected keyword argument 'delay'"):
        app.emit_sync("order.paid", OrderPaid("a"), session=session, delay=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("due", [{"delay_s": 5}, {"at": None}])
def test_a_message_that_is_waited_for_cannot_be_delayed(due: Any) -> None:
    app = App("shop", redis="redis://127.0.0.1:1/0")
    app.handler("order.paid")(handle)

    with pytest.raises(ConfigurationError, match=f"emit_and_wait takes no {min(due)}: its message is sent immediately"):
        app.emit_and_wait_sync("order.paid", OrderPaid("1"), **due)


async def test_emit_without_redis_names_the_ways_to_give_one() -> None:
    app = App("shop")
    app.handler("order.paid")(handle)

    with pytest.raises(ConfigurationError, match=r"no Redis: give App\(…, redis=…\), set CONQUIET_REDIS_URL, or write"):
        await app.emit("order.paid", OrderPaid("a"))


async def test_a_queue_without_rabbitmq_is_refused_at_the_start() -> None:
    app = App("shop")
    app.queue("orders")(handle)

    with pytest.raises(ConfigurationError, match="queue 'orders' has a handler, but the app has no RabbitMQ"):
        await app.run()


def test_options_of_a_queue_are_checked_when_it_is_declared() -> None:
    with pytest.raises(ConfigurationError, match="queue 'orders' has an option that does not exist"):
        App("shop").queue("orders", wrong=1)
    with pytest.raises(ConfigurationError, match="max_requeues"):
        App("shop").queue("orders", max_requeues=0)


def test_a_queue_has_no_job_context_and_one_handler() -> None:
    async def with_context(ctx: JobContext) -> None:
        raise AssertionError

    app = App("shop")
    with pytest.raises(ConfigurationError, match="asks for a JobContext, which messages of RabbitMQ do not have"):
        app.queue("orders")(with_context)
    app.queue("orders")(handle)
    with pytest.raises(ConfigurationError, match="queue 'orders' has a handler already"):
        app.queue("orders")(handle)


def test_a_schedule_has_no_payload_and_a_name_of_its_own() -> None:
    app = App("shop")

    with pytest.raises(ConfigurationError, match="'handle' asks for a payload, which a schedule does not have"):
        app.schedule(Every(60))(handle)
    app.schedule(Every(60))(no_payload)
    with pytest.raises(ConfigurationError, match="a schedule named 'no_payload' exists already"):
        app.schedule(Every(30))(no_payload)


def test_once_without_a_session_has_nothing_to_leave_out() -> None:
    with pytest.raises(ConfigurationError, match="once=False and no session"):
        App("shop").handler("order.paid", once=False)(handle)


async def test_a_missing_table_is_one_sentence_at_the_start(tmp_path: Path) -> None:
    app = App("shop", redis=NOWHERE, database=f"sqlite:///{tmp_path / 'shop.db'}")

    @app.handler("order.paid")
    def book(order: OrderPaid, session: DbSession) -> None:
        raise AssertionError

    with pytest.raises(
        ConfigurationError,
        match=r"the tables conquiet_inbox, conquiet_outbox do not exist .*conquiet db init module:app",
    ):
        await app.run()


async def test_created_tables_are_found(tmp_path: Path) -> None:
    app = App(
        "shop",
        redis=NOWHERE,
        database=f"sqlite:///{tmp_path / 'shop.db'}",
        settings=AppSettings(inbox="shop_inbox", outbox="shop_outbox"),
    )

    app.create_tables()

    tables = app.assembly.database.sync_engine().connect()
    with tables:
        assert set(tables.exec_driver_sql("SELECT name FROM sqlite_master WHERE type='table'").scalars()) >= {
            "shop_inbox",
            "shop_outbox",
        }
    await app.close()


@pytest.mark.parametrize("only", [["handler"], [], ["relay", "web"]])
async def test_parts_that_do_not_exist_are_refused(only: Any) -> None:
    app = App("shop", redis=NOWHERE)
    app.handler("order.paid")(handle)

    with pytest.raises(ConfigurationError, match="only must be some of handlers, relay, scheduler"):
        await app.run(only=only)


async def test_a_part_that_the_app_lacks_is_refused_by_name() -> None:
    for part, sentence in (("relay", "the app has no database"), ("scheduler", "the app has no schedule to run")):
        app = App("shop", redis=NOWHERE)
        app.handler("order.paid")(handle)

        with pytest.raises(ConfigurationError, match=sentence):
            await app.run(only=[part])  # type: ignore[list-item]


async def test_main_inside_an_event_loop_is_refused_with_the_right_call() -> None:
    app = App("shop", redis=NOWHERE)

    with pytest.raises(LifecycleError, match=r"inside a running one: await app\.run\(\)"):
        app.main()


async def test_an_app_is_a_worker_that_is_not_ready_before_its_start() -> None:
    app = App("shop", redis=NOWHERE)

    assert isinstance(app, Worker)
    assert (app.name, app.abandoned) == ("shop", 0)
    assert (app.health().ready, app.health().reason) == (False, "not started")
    app.stop()
    with pytest.raises(LifecycleError, match="cannot start"):
        await app.run()


def test_servers_come_from_the_environment_and_from_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "conquiet.toml").write_text('db_url = "sqlite:///of-the-file.db"\n')
    monkeypatch.setenv("CONQUIET_REDIS_URL", "redis://of-the-environment:1/0")

    app = App("shop")

    assert str(app.assembly.database.sync_engine().url) == "sqlite:///of-the-file.db"
    assert "of-the-environment" in repr(app.assembly.bus._redis)  # type: ignore[attr-defined]


async def test_a_transaction_gives_its_message_the_id() -> None:
    app = App("shop", redis=NOWHERE, database="sqlite://")
    app.handler("order.paid")(handle)

    with (
        pytest.raises(ConfigurationError, match="gets its id from the outbox: leave id out"),
        Session(create_engine("sqlite://")) as session,
    ):
        app.emit_sync("order.paid", OrderPaid("a"), session=session, id="mine")


async def test_a_session_is_refused_by_the_emit_of_the_other_kind() -> None:
    app = App("shop", redis=NOWHERE, database="sqlite://")
    app.handler("order.paid")(handle)

    sync_engine = create_engine("sqlite://")
    with sync_engine.connect() as session:
        assert isinstance(session, Connection)
        with pytest.raises(ConfigurationError, match=r"blocks the event loop: call app.emit_sync"):
            await app.emit("order.paid", OrderPaid("a"), session=session)
    sync_engine.dispose()
    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.connect() as async_session:
        with pytest.raises(ConfigurationError, match=r"cannot await: call 'await app.emit"):
            app.emit_sync("order.paid", OrderPaid("a"), session=async_session)
    await engine.dispose()


async def test_delay_and_at_exclude_each_other() -> None:
    from datetime import UTC, datetime

    app = App("shop", redis=NOWHERE)
    app.handler("order.paid")(handle)

    with pytest.raises(ConfigurationError, match="give delay_s or at, not both"):
        await app.emit("order.paid", OrderPaid("a"), delay_s=1, at=datetime.now(UTC))
    with pytest.raises(ConfigurationError, match="at must be a datetime with a time zone"):
        await app.emit("order.paid", OrderPaid("a"), at=datetime(2030, 1, 1))  # noqa: DTZ001 - the mistake


class Pool:
    """A resource of the process."""


def app_with_resource() -> tuple[App, list[str]]:
    """Return an app with a resource that is cleaned up slowly, and the list of finished clean-ups."""
    app = App("shop", redis=NOWHERE)
    ended: list[str] = []

    async def make_pool():  # type: ignore[no-untyped-def]  # noqa: ANN202 - a factory
        yield Pool()
        await asyncio.sleep(0.05)
        ended.append("pool")

    app.provide(Pool, make_pool, scope="process")

    @app.handler("order.paid")
    async def book(order: dict, pool: Pool) -> None:  # type: ignore[type-arg]
        raise AssertionError

    return app, ended


async def test_close_returns_when_the_resources_of_the_process_are_cleaned_up() -> None:
    """Otherwise the program ends its loop, and with it a clean-up that runs in ``run()``."""
    app, ended = app_with_resource()
    running = asyncio.create_task(app.run())
    await asyncio.sleep(0)  # now it waits for its server
    async with app.registry.resources.open((Pool,)):
        pass

    await app.close()

    assert ended == ["pool"]
    await running


async def test_a_handler_of_another_worker_can_close_an_app_that_only_emits() -> None:
    app, ended = app_with_resource()

    async def handle(_message: str) -> None:
        async with app.lifespan(), app.registry.resources.open((Pool,)):
            pass

    pool = WorkerPool(1, handle, on_free=lambda: None)
    pool.start()
    pool.put(["message"])
    await pool.wait_idle()
    await pool.close()

    assert ended == ["pool"]
