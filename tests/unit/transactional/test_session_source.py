"""The session that a handler gets, and the functions that are refused at registration."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from tests.unit.transactional.outbox_rows import rows

from conquiet.db.session import DbSession
from conquiet.db.transaction_guard import TransactionGuard
from conquiet.errors import ConfigurationError, LifecycleError
from conquiet.queue.models import QueueMessage
from conquiet.transactional import (
    Inbox,
    LeaseCheck,
    effect_once,
    effect_once_async,
    for_processor,
    for_rabbit,
    for_runtime,
)

MESSAGE = QueueMessage("orders", "billing", "1-0", {})


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def orders(engine: Engine) -> Callable[[], tuple[int, int]]:
    """Return how many orders and inbox rows are committed."""
    Base.metadata.create_all(engine)

    def count() -> tuple[int, int]:
        with DbSession(engine) as session:
            return (
                int(session.execute_scalar("SELECT COUNT(*) FROM orders")),
                int(session.execute_scalar("SELECT COUNT(*) FROM conquiet_inbox")),
            )

    return count


@pytest_asyncio.fixture
async def async_engine(engine: Engine) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))
    yield made
    await made.dispose()


def plain(*_: Any) -> None:
    pytest.fail("not called")


def untyped(function: Any) -> Any:
    return function


async def coroutine(*_: Any) -> None:
    pytest.fail("not called")


# ------------------------------------------------------------------ the four kinds
def test_a_plain_handler_gets_the_session_that_was_configured(engine: Engine) -> None:
    given: list[Any] = []

    sources: list[Any] = [engine, sessionmaker(engine)]
    for number, source in enumerate(sources):
        effect_once(source, Inbox(), QueueMessage("s", "g", f"{number}-0", {}), given.append)

    assert isinstance(given[0], DbSession)
    assert isinstance(given[1], Session)


async def test_an_async_handler_gets_the_session_that_was_configured(
    async_engine: AsyncEngine, orders: Callable[[], tuple[int, int]]
) -> None:
    given: list[type] = []

    async def work(session: Any) -> None:
        given.append(type(session))

    sources: list[Any] = [async_engine, async_sessionmaker(async_engine)]
    for number, source in enumerate(sources):
        message = QueueMessage("s", "g", f"{number}-0", {})
        assert await effect_once_async(source, Inbox(), message, work)
        assert not await effect_once_async(source, Inbox(), message, work)

    assert given == [AsyncConnection, AsyncSession]
    assert orders() == (0, 2)


def test_an_orm_handler_needs_no_flush_and_no_commit(engine: Engine, orders: Callable[[], tuple[int, int]]) -> None:
    effect_once(sessionmaker(engine), Inbox(), MESSAGE, lambda session: session.add(Order(id=1)))

    assert orders() == (1, 1)


async def test_an_async_orm_handler_needs_no_flush_and_no_commit(
    async_engine: AsyncEngine, orders: Callable[[], tuple[int, int]]
) -> None:
    async def work(session: AsyncSession) -> None:
        session.add(Order(id=1))

    await effect_once_async(async_sessionmaker(async_engine), Inbox(), MESSAGE, work)

    assert orders() == (1, 1)


# ------------------------------------------------------------------ one transaction
@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only", "create_savepoint"])
def test_commit_of_an_orm_session_commits_nothing(
    engine: Engine, orders: Callable[[], tuple[int, int]], mode: Any
) -> None:
    def work(session: Session) -> None:
        session.add(Order(id=1))
        session.commit()
        session.add(Order(id=2))
        raise RuntimeError("after the commit")

    with pytest.raises(RuntimeError):
        effect_once(sessionmaker(engine, join_transaction_mode=mode), Inbox(), MESSAGE, work)

    assert orders() == (0, 0)


async def test_commit_of_an_async_orm_session_commits_nothing(
    async_engine: AsyncEngine, orders: Callable[[], tuple[int, int]]
) -> None:
    async def work(session: AsyncSession) -> None:
        async with session.begin():
            session.add(Order(id=1))
        raise RuntimeError("after the commit")

    with pytest.raises(RuntimeError):
        await effect_once_async(async_sessionmaker(async_engine), Inbox(), MESSAGE, work)

    assert orders() == (0, 0)


async def test_a_transaction_that_the_handler_ended_is_refused(
    engine: Engine, async_engine: AsyncEngine, orders: Callable[[], tuple[int, int]]
) -> None:
    async def work(connection: AsyncConnection) -> None:
        await connection.rollback()
        await connection.execute(text("INSERT INTO orders VALUES (1)"))

    def rolls_back(session: Session) -> None:
        session.add(Order(id=2))
        session.flush()
        session.rollback()
        session.add(Order(id=3))

    with pytest.raises(LifecycleError, match="committed or rolled back"):
        await effect_once_async(async_engine, Inbox(), MESSAGE, work)
    with pytest.raises(LifecycleError, match="committed or rolled back"):
        effect_once(sessionmaker(engine), Inbox(), MESSAGE, rolls_back)

    assert orders() == (0, 0)


async def test_a_commit_of_the_connection_is_refused_before_it_is_sent(
    engine: Engine, async_engine: AsyncEngine, orders: Callable[[], tuple[int, int]]
) -> None:
    async def commits(connection: AsyncConnection) -> None:
        await connection.execute(text("INSERT INTO orders VALUES (1)"))
        await connection.commit()

    async def hides_it(connection: AsyncConnection) -> None:
        with suppress(LifecycleError):
            await commits(connection)

    def commits_below_the_orm(session: Session) -> None:
        session.add(Order(id=2))
        session.connection().commit()

    def commits_below_the_session(session: DbSession) -> None:
        session.execute("INSERT INTO orders VALUES (3)")
        session.connection.commit()

    for work, problem in ((commits, r"remove commit\(\)"), (hides_it, "committed or rolled back")):
        with pytest.raises(LifecycleError, match=problem):
            await effect_once_async(async_engine, Inbox(), MESSAGE, work)
    with pytest.raises(LifecycleError, match=r"remove commit\(\)"):
        effect_once(sessionmaker(engine), Inbox(), MESSAGE, commits_below_the_orm)
    with pytest.raises(LifecycleError, match=r"remove commit\(\)"):
        effect_once(engine, Inbox(), MESSAGE, commits_below_the_session)

    assert orders() == (0, 0)
    assert async_engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_a_commit_listener_of_an_orm_session_may_write(
    engine: Engine, async_engine: AsyncEngine, orders: Callable[[], tuple[int, int]]
) -> None:
    """Also where the handler has left nothing to flush."""

    class Audited(Session):
        """Writes one more order."""

    @event.listens_for(Audited, "before_commit")
    def audit(session: Session) -> None:
        session.execute(text("INSERT INTO orders SELECT COALESCE(MAX(id), 0) + 1 FROM orders"))

    async def work(session: AsyncSession) -> None:
        await session.execute(text("INSERT INTO orders VALUES (3)"))

    audited = async_sessionmaker(async_engine, sync_session_class=Audited)
    effect_once(
        sessionmaker(engine, class_=Audited), Inbox(), QueueMessage("orders", "billing", "2-0", {}), lambda _: None
    )
    await effect_once_async(audited, Inbox(), MESSAGE, work)

    assert orders() == (3, 2)


def test_a_refused_commit_leaves_no_transaction_in_the_pool(
    engine: Engine, orders: Callable[[], tuple[int, int]]
) -> None:
    """The next message on that connection would commit its inbox row, and half of its effect."""
    without_reset = create_engine(engine.url, pool_size=1, max_overflow=0, pool_reset_on_return=None)

    def commits(session: Session) -> None:
        session.add(Order(id=1))
        session.flush()
        session.connection().commit()

    with pytest.raises(LifecycleError, match=r"remove commit\(\)"):
        effect_once(sessionmaker(without_reset), Inbox(), MESSAGE, commits)
    effect_once(without_reset, Inbox(), QueueMessage("orders", "billing", "2-0", {}), lambda _: None)

    assert orders() == (0, 1)
    without_reset.dispose()


async def test_with_savepoints_an_orm_handler_may_roll_back(
    engine: Engine, async_engine: AsyncEngine, orders: Callable[[], tuple[int, int]]
) -> None:
    def work(session: Session) -> None:
        session.add(Order(id=1))
        session.flush()
        session.rollback()
        session.add(Order(id=2))

    effect_once(sessionmaker(engine, join_transaction_mode="create_savepoint"), Inbox(), MESSAGE, work)

    assert orders() == (1, 1)


async def test_a_failing_async_handler_leaves_nothing(
    async_engine: AsyncEngine, orders: Callable[[], tuple[int, int]]
) -> None:
    async def work(connection: AsyncConnection) -> None:
        await connection.execute(text("INSERT INTO orders VALUES (1)"))
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        await effect_once_async(async_engine, Inbox(), MESSAGE, work)

    assert orders() == (0, 0)
    assert async_engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_a_check_before_commit_rolls_back(
    async_engine: AsyncEngine, orders: Callable[[], tuple[int, int]]
) -> None:
    from conquiet.transactional.session_source import AsyncSource

    def lost() -> None:
        raise LifecycleError("lease lost")

    async def work(session: AsyncConnection) -> None:
        await session.execute(text("INSERT INTO orders VALUES (1)"))

    with pytest.raises(LifecycleError, match="lease lost"):
        await AsyncSource(async_engine).effect_once(Inbox(), MESSAGE, work, lost)

    assert orders() == (0, 0)


async def test_an_async_handler_that_forgot_an_await_is_refused(
    async_engine: AsyncEngine, orders: Callable[[], tuple[int, int]]
) -> None:
    async def work(connection: AsyncConnection) -> Any:
        return connection.execute(text("INSERT INTO orders VALUES (1)"))

    with pytest.raises(ConfigurationError, match="await"):
        await effect_once_async(async_engine, Inbox(), MESSAGE, work)

    assert orders() == (0, 0)


def generator(*_: Any) -> Iterator[None]:
    yield
    raise AssertionError("not run")


def test_a_generator_from_a_plain_function_leaves_no_inbox_row(engine: Engine) -> None:
    """None of its body would run, and the row would record an effect."""
    with pytest.raises(ConfigurationError, match="returned a generator, so its work was not done"):
        effect_once(engine, Inbox(), MESSAGE, lambda _: generator())

    assert rows(engine) == 0


# ------------------------------------------------------------------ refused at registration
@pytest.mark.parametrize("make", [for_runtime, for_processor, for_rabbit])
def test_a_generator_function_is_refused_as_a_handler(engine: Engine, make: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="must not be a generator"):
        make(generator, engine=engine)


@pytest.mark.parametrize("make", [for_runtime, for_processor, for_rabbit])
def test_a_wrong_combination_says_what_to_pass(engine: Engine, make: Callable[..., Any]) -> None:
    async_engine = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))

    for source in (engine, sessionmaker(engine)):
        with pytest.raises(ConfigurationError, match=r"plain function, not 'async def'.*create_async_engine"):
            make(coroutine, engine=source)
    for other in (async_engine, async_sessionmaker(async_engine)):
        with pytest.raises(ConfigurationError, match=r"must be 'async def'.*create_engine"):
            make(plain, engine=other)
    asyncio.run(async_engine.dispose())


def test_a_source_without_one_database_is_refused(engine: Engine) -> None:
    class Routed(Session):
        def get_bind(self, *_: Any, **__: Any) -> Engine | Connection:
            return engine

    wrong_ones: list[tuple[Any, str]] = [
        (sessionmaker(), "bound to nothing"),
        (async_sessionmaker(), "bound to nothing"),
        (sessionmaker(engine, binds={Order: engine}), "chooses a database"),
        (sessionmaker(engine, class_=Routed), "chooses a database"),
        (sessionmaker(engine, join_transaction_mode="control_fully"), "control_fully"),
        (Session(engine), "each message has its own"),
        (AsyncSession(), "each message has its own"),
        ("mysql://", "must be a sqlalchemy Engine or sessionmaker"),
    ]
    for wrong, problem in wrong_ones:
        with pytest.raises(ConfigurationError, match=problem):
            for_runtime(untyped(plain), engine=wrong)


async def test_a_lease_check_is_refused_for_async_handlers(async_engine: AsyncEngine) -> None:
    with pytest.raises(ConfigurationError, match="must be an Inbox"):
        await effect_once_async(async_engine, LeaseCheck(lambda _: True), MESSAGE, coroutine)  # type: ignore[arg-type]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_of_a_guarded_connection(tmp_path: Path, *, fails: bool) -> None:
    """Each message has its own connection object: a reference that stays would grow with every message."""
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")

    def run() -> "weakref.ref[Connection]":
        with engine.connect() as connection, connection.begin():
            guard = TransactionGuard(connection)
            try:
                raise LookupError
            except LookupError as error:
                guard.failure = error if fails else None  # its traceback has this frame, and so the connection
            if not fails:
                guard.allow_commit()
            else:
                connection.rollback()
            return weakref.ref(connection)

    left = run()
    gc.collect()

    assert left() is None
    engine.dispose()
