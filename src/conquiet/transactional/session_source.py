"""Open the session of a handler and apply one message's effect in it: the four kinds of engine.

    engine=                 the handler gets       and is
    Engine                  DbSession              a plain function
    sessionmaker            Session (ORM)          a plain function
    AsyncEngine             AsyncConnection        async def
    async_sessionmaker      AsyncSession (ORM)     async def

An ORM session is bound to a connection on which the transaction has begun already, so it joins that transaction: its
``commit()`` writes what it holds and commits nothing, its ``rollback()`` ends the transaction, which is then refused
(with ``join_transaction_mode="create_savepoint"`` it rolls back to the beginning of the handler, and work may
continue).

    BEGIN ─ inbox row ─ handler ─ flush ─ checks ─ COMMIT        anything that raises: ROLLBACK

What surrounds a handler (``handlers``, ``batch_source``, ``cancelled_jobs``) is written once, as coroutines over a
source. The coroutines of a ``SyncSource`` never suspend, so ``entry_point`` makes a plain function of them.

See docs/decisions/0006.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from conquiet.core.functions import is_coroutine_function, reject_awaitable, reject_unawaited
from conquiet.core.threads import run_without_loop
from conquiet.db.dialects import require_supported
from conquiet.db.engine_pool import pool_capacity
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError
from conquiet.transactional.unit_of_work import UnitOfWork, run_in, unit_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

    from conquiet.core.deduplicator import Deduplicator
    from conquiet.transactional.async_transaction import AsyncTransaction

Check = Callable[[], None]
Work = Callable[[Any], Awaitable[object]]
T = TypeVar("T")


class SyncSource:
    """Sessions for plain functions.

    Args:
        engine: The database.
        maker: Makes the ORM session that the handler gets; None gives it the ``DbSession``.

    Attributes:
        takes_batches: Whether many messages can share a transaction.
    """

    takes_batches = True

    def __init__(self, engine: Engine, maker: "sessionmaker[Any] | None" = None) -> None:
        self.engine = require_supported(engine)
        self.maker = maker
        self.capacity = pool_capacity(engine)

    def require_handler(self, handler: Callable[..., Any]) -> None:
        """Raise ``ConfigurationError`` for an ``async def`` handler."""
        if is_coroutine_function(handler):
            kind = "a sessionmaker" if self.maker is not None else "an Engine"
            raise ConfigurationError(
                f"handler must be a plain function, not 'async def', because engine is {kind}: pass an AsyncEngine "
                "(create_async_engine) or an async_sessionmaker, or make the handler a plain function"
            )

    def entry_point(self, function: "Callable[..., Coroutine[Any, Any, T]]") -> Callable[..., Any]:
        """Return what the engine calls for a coroutine function of this package: a plain function."""
        return lambda *arguments: run_without_loop(function(*arguments))

    async def call(self, function: Callable[..., object], *arguments: Any) -> Any:
        """Call a function of the user, and refuse a coroutine: the inbox row would record an effect."""
        try:
            result = function(*arguments)
        except StopIteration as error:  # it cannot leave a coroutine
            raise RuntimeError("the handler raised StopIteration") from error
        reject_awaitable("the handler", result)
        return result

    async def effect_once(
        self, inbox: "Deduplicator", msg: Any, work: Work, before_commit: Check | None = None
    ) -> bool:
        """Run ``await work(session)`` in a new transaction unless the message has had its effect. True if it ran."""
        with DbSession(self.engine) as db, inbox.once(db, msg) as first_time:
            if first_time:
                if before_commit is not None:
                    db.before_commit(lambda _: before_commit())
                await self.in_session(db, work)
        return first_time

    @asynccontextmanager
    async def batch(self, inbox: Any, msgs: Sequence[Any], check: Check) -> AsyncIterator[tuple[DbSession, list[bool]]]:
        """Open a transaction and record messages in it; yield its session, and whether each message is new.

        Args:
            inbox: Records the messages.
            msgs: The messages.
            check: Called right before COMMIT; if it raises, the transaction is rolled back.
        """
        with DbSession(self.engine) as db, inbox.once_many(db, msgs) as first_time:
            db.before_commit(lambda _: check())
            yield db, first_time

    async def in_session(self, db: DbSession, work: Work) -> None:
        """Run ``await work(session)`` with the kind of session that the handler gets, in an open transaction."""
        if self.maker is None:
            await work(db)
            return
        session: Session = self.maker(bind=db.connection)
        await work(session)
        session.commit()  # writes what it holds, and commits nothing
        session.close()

    async def in_part(self, db: DbSession, work: Work) -> None:
        """Do what ``in_session`` does, inside a savepoint."""
        if self.maker is None:
            await work(db)
            return
        # The session is closed even after an error, before the outer savepoint: it has another savepoint.
        with self.maker(bind=db.connection) as session:
            await work(session)
            session.commit()

    async def on_connection(self, db: DbSession, work: Callable[[Connection], T]) -> T:
        """Return ``work(connection)`` of an open transaction."""
        return work(db.connection)

    async def in_unit(self, session: Any, work: Callable[[UnitOfWork], T]) -> T:
        """Return ``work(unit)`` for the transaction of a session."""
        return work(unit_of(session))

    async def read(self, work: Callable[[UnitOfWork], T]) -> T:
        """Return ``work(unit)``, in a new transaction."""
        with DbSession(self.engine) as db:
            return work(unit_of(db))


class AsyncSource:
    """Sessions for ``async def`` functions.

    Args:
        engine: The database.
        maker: Makes the ORM session that the handler gets; None gives it the ``AsyncConnection``.

    Attributes:
        takes_batches: See ``SyncSource``.
    """

    takes_batches = True

    def __init__(self, engine: "AsyncEngine", maker: "async_sessionmaker[Any] | None" = None) -> None:
        require_supported(engine.sync_engine)
        self.engine = engine
        self.maker = maker
        self._uses_savepoint = maker is not None and maker.kw.get("join_transaction_mode") == "create_savepoint"
        self.capacity = pool_capacity(engine.sync_engine)

    def require_handler(self, handler: Callable[..., Any]) -> None:
        """Raise ``ConfigurationError`` for a plain function."""
        if not is_coroutine_function(handler):
            kind = "an async_sessionmaker" if self.maker is not None else "an AsyncEngine"
            raise ConfigurationError(
                f"handler must be 'async def', because engine is {kind}: make it 'async def', or pass an Engine "
                "(create_engine) or a sessionmaker"
            )

    def entry_point(self, function: "Callable[..., Coroutine[Any, Any, T]]") -> Callable[..., Any]:
        """See ``SyncSource.entry_point``: the coroutine function itself."""
        return function

    async def call(self, function: Callable[..., Awaitable[object]], *arguments: Any) -> Any:
        """Call a function of the user, and refuse a coroutine that it has not awaited."""
        result = await function(*arguments)
        reject_unawaited(result)
        return result

    async def effect_once(self, inbox: Any, msg: Any, work: Work, before_commit: Check | None = None) -> bool:
        """See ``SyncSource.effect_once``."""
        async with self._transaction(before_commit) as connection:
            check = inbox.once(connection, msg)
            if not hasattr(check, "__aenter__"):
                raise ConfigurationError(
                    "with an asynchronous engine, inbox must be an Inbox or the name of its table: the once() of a "
                    f"{type(inbox).__name__} is synchronous"
                )
            async with check as first_time:
                if first_time:
                    await self.in_session(connection, work)
        return bool(first_time)

    def _transaction(self, before_commit: Check | None = None) -> "AsyncTransaction":
        from conquiet.transactional.async_transaction import AsyncTransaction

        return AsyncTransaction(self.engine, before_commit=before_commit)

    @asynccontextmanager
    async def batch(
        self, inbox: Any, msgs: Sequence[Any], check: Check
    ) -> "AsyncIterator[tuple[AsyncConnection, list[bool]]]":
        """See ``SyncSource.batch``."""
        async with (
            self._transaction(check) as connection,
            inbox.once_many(connection, msgs) as first_time,
        ):
            yield connection, first_time

    async def in_session(self, connection: "AsyncConnection", work: Work) -> None:
        """See ``SyncSource.in_session``."""
        if self.maker is None:
            await work(connection)
            return
        session: AsyncSession = self.maker(bind=connection)
        await work(session)
        inner = session.sync_session
        has_listener = inner.dispatch.before_commit or inner.dispatch.after_commit
        if self._uses_savepoint or has_listener or inner.new or inner.dirty or inner.deleted:
            await session.commit()  # writes what it holds, and commits nothing
        inner.close()  # sends nothing

    async def in_part(self, connection: "AsyncConnection", work: Work) -> None:
        """See ``SyncSource.in_part``."""
        if self.maker is None:
            await work(connection)
            return
        async with self.maker(bind=connection) as session:
            await work(session)
            await session.commit()

    async def on_connection(self, connection: "AsyncConnection", work: Callable[[Connection], T]) -> T:
        """See ``SyncSource.on_connection``."""
        return await connection.run_sync(work)

    async def in_unit(self, session: Any, work: Callable[[UnitOfWork], T]) -> T:
        """See ``SyncSource.in_unit``."""
        return await run_in(session, work)

    async def read(self, work: Callable[[UnitOfWork], T]) -> T:
        """See ``SyncSource.read``."""
        async with self._transaction() as connection:
            return await run_in(connection, work)


def source_of(engine: object) -> SyncSource | AsyncSource:
    """Return the source of sessions for an argument ``engine``.

    Raises:
        ConfigurationError: It is none of the four kinds; the text names the right argument.
    """
    if isinstance(engine, SyncSource | AsyncSource):  # one of another framework: see ``contrib.django``
        return engine
    if isinstance(engine, Engine):
        return SyncSource(engine)
    if isinstance(engine, sessionmaker):
        bind = engine.kw.get("bind")
        if not isinstance(bind, Engine):
            _reject_bind("sessionmaker", "Engine", bind)
        _require_joining("sessionmaker", engine.kw, engine.class_)
        return SyncSource(bind, engine)
    if any(kind.__module__.startswith("sqlalchemy.ext.asyncio") for kind in type(engine).__mro__):
        return _async_source_of(engine)
    if isinstance(engine, Session | scoped_session | Connection | DbSession):
        raise ConfigurationError(
            f"engine must be what sessions are made from, because each message has its own; got a "
            f"{type(engine).__name__}. Pass the Engine or the sessionmaker"
        )
    raise ConfigurationError(
        "engine must be a sqlalchemy Engine or sessionmaker (for plain functions), or an AsyncEngine or "
        f"async_sessionmaker (for 'async def'); got a {type(engine).__name__}"
    )


def _async_source_of(engine: object) -> AsyncSource:
    from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

    if isinstance(engine, AsyncEngine):
        return AsyncSource(engine)
    if isinstance(engine, async_sessionmaker):
        bind = engine.kw.get("bind")
        if not isinstance(bind, AsyncEngine):
            _reject_bind("async_sessionmaker", "AsyncEngine", bind)
        inner = engine.kw.get("sync_session_class") or engine.class_.sync_session_class
        _require_joining("async_sessionmaker", engine.kw, inner)
        return AsyncSource(bind, engine)
    raise ConfigurationError(
        f"engine must be an AsyncEngine or an async_sessionmaker, because each message has its own session; got a "
        f"{type(engine).__name__}"
    )


def _reject_bind(maker: str, wanted: str, bind: object) -> NoReturn:
    raise ConfigurationError(
        f"the {maker} must be bound to one {wanted}, the database of the inbox: {maker}(engine); it is bound to "
        f"{'nothing' if bind is None else type(bind).__name__}"
    )


def _require_joining(maker: str, settings: Mapping[str, Any], session_class: type[Session]) -> None:
    """Raise if sessions would write elsewhere, or end the transaction of the inbox."""
    if settings.get("binds") or session_class.get_bind is not Session.get_bind:
        raise ConfigurationError(
            f"the {maker} chooses a database for each statement (binds, or get_bind() of its Session class), so writes "
            "of the handler might not be in the transaction of the inbox; use one that is bound to a single engine"
        )
    if settings.get("join_transaction_mode") == "control_fully":
        raise ConfigurationError(
            f"the {maker} has join_transaction_mode='control_fully': its commit() would commit the transaction of the "
            "inbox; leave the setting out"
        )
