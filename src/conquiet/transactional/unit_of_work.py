"""Run statements of the inbox and the outbox in the caller's transaction, which the caller commits.

    DbSession                      its own execute: translated, counted, refused after a conflict
    Session, scoped_session        the connection of its transaction, which begins if there is none yet
    Connection                     itself
    AsyncSession, AsyncConnection  the same inside ``run_sync``: one greenlet for all statements of a call;
                                   so for an async_scoped_session
    of another framework           the result of its method ``conquiet_unit_of_work()``

Driver errors become ``DbWriteError`` here, for every kind of session, raised ``from`` the driver's error.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import TextClause, event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session

from conquiet.db.commit_status import record_transaction
from conquiet.db.errors import OperationInfo, as_write_error
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError
from conquiet.transactional.sql_dialect import SqlDialect, dialect_named

T = TypeVar("T")
Binds = Mapping[str, Any]

SyncSession = DbSession | Session | Connection | scoped_session[Any]

_ABOUT = OperationInfo("a statement of the inbox or outbox")


class UnitOfWork(ABC):
    """One transaction, seen by the inbox and the outbox.

    Attributes:
        engine: The engine of the transaction.
        dialect: The SQL of its database.
    """

    __slots__ = ("dialect", "engine")

    def __init__(self, engine: Engine, dialect: SqlDialect) -> None:
        self.engine = engine
        self.dialect = dialect

    @property
    @abstractmethod
    def transaction(self) -> object:
        """An object that lives as long as the transaction; known after the first statement."""

    @abstractmethod
    def after_commit(self, step: Callable[[], None]) -> None:
        """Call ``step`` when the transaction commits; never if it rolls back."""

    @abstractmethod
    def execute(self, statement: TextClause, binds: Binds) -> int:
        """Run a statement and return its row count."""

    @abstractmethod
    def fetch_all(self, statement: TextClause, binds: Binds) -> Sequence[Mapping[str, Any]]:
        """Return all rows."""

    def fetch_one(self, statement: TextClause, binds: Binds) -> Mapping[str, Any] | None:
        """Return the only row, or None."""
        rows = self.fetch_all(statement, binds)
        return rows[0] if rows else None

    def insert(self, statement: TextClause, binds: Binds) -> int:
        """Write an inbox row, record the transaction id that the statement returns, and return the row count."""
        if not self.dialect.returns_transaction:
            return self.execute(statement, binds)
        row = self.fetch_one(statement, binds)
        if row is None:
            return 0
        self._record_id(row)
        return 1

    def insert_many(self, statement: TextClause, binds: Binds) -> set[bytes] | None:
        """Run the statement that reports which inbox rows it wrote; None if it wrote all of them."""
        row = self.fetch_one(statement, binds)
        assert row is not None  # noqa: S101 - it counts, and always returns a row
        self._record_id(row)
        written: str | None = row["written"]
        return None if written is None else {bytes.fromhex(each) for each in written.split(",")}

    @abstractmethod
    def _record_id(self, row: Mapping[str, Any]) -> None:
        """Record the id of the transaction, which resolves a lost reply to COMMIT."""


class _OfDbSession(UnitOfWork):
    """The transaction of a ``DbSession``."""

    __slots__ = ("_session",)

    def __init__(self, session: DbSession) -> None:
        super().__init__(session.engine, dialect_named(session.engine.dialect.name))
        self._session = session

    @property
    def transaction(self) -> object:
        return self._session

    def after_commit(self, step: Callable[[], None]) -> None:
        self._session.write_counts.after_commit(step)

    def execute(self, statement: TextClause, binds: Binds) -> int:
        return self._session.execute(statement, binds)

    def fetch_all(self, statement: TextClause, binds: Binds) -> Sequence[Mapping[str, Any]]:
        return self._session.fetch_all(statement, binds)

    def _record_id(self, row: Mapping[str, Any]) -> None:
        self._session.record_transaction(row)


class _OfConnection(UnitOfWork):
    """The transaction that is open on a connection, or that its first statement begins."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        _reject_autocommit(connection)
        super().__init__(connection.engine, dialect_named(connection.dialect.name, connection.dialect.driver))
        self._connection = connection

    @property
    def transaction(self) -> object:
        return self._connection.get_transaction()

    def after_commit(self, step: Callable[[], None]) -> None:
        """Call ``step`` at SQLAlchemy's event, just before COMMIT is sent."""
        steps = _at_commit.get(self._connection)
        if steps is None:
            steps = _at_commit[self._connection] = []
            event.listen(self._connection, "commit", _committed)
            event.listen(self._connection, "rollback", _rolled_back)
        steps.append(step)

    def execute(self, statement: TextClause, binds: Binds) -> int:
        try:
            return self._connection.execute(statement, binds).rowcount
        except SQLAlchemyError as error:
            raise as_write_error(error, _ABOUT) from error

    def fetch_all(self, statement: TextClause, binds: Binds) -> Sequence[Mapping[str, Any]]:
        try:
            return [row._asdict() for row in self._connection.execute(statement, binds).all()]
        except SQLAlchemyError as error:
            raise as_write_error(error, _ABOUT) from error

    def _record_id(self, row: Mapping[str, Any]) -> None:
        record_transaction(self._connection, row)


_at_commit: WeakKeyDictionary[Connection, list[Callable[[], None]]] = WeakKeyDictionary()


def _committed(connection: Connection) -> None:
    steps = _at_commit.get(connection, [])
    for step in steps:
        step()
    steps.clear()


def _rolled_back(connection: Connection) -> None:
    _at_commit.get(connection, []).clear()


def unit_of(session: object) -> UnitOfWork:
    """Return the transaction of a synchronous session.

    Raises:
        ConfigurationError: It is not a session, an asynchronous one, or one without a transaction.
    """
    if isinstance(session, DbSession):
        return _OfDbSession(session)
    foreign = getattr(session, "conquiet_unit_of_work", None)
    if foreign is not None and not isinstance(session, type):
        unit: UnitOfWork = foreign()
        return unit
    if isinstance(session, Connection):
        return _OfConnection(session)
    if isinstance(session, scoped_session):
        session = session()
    if isinstance(session, Session):
        return _OfConnection(_connection_of(session))
    if is_async(session):
        raise ConfigurationError(
            f"a {type(session).__name__} is asynchronous: write 'async with inbox.once(session, msg)', "
            "'await outbox.add_async(session, …)', or another method whose name ends in _async"
        )
    raise ConfigurationError(
        "session must be the session of the transaction it belongs to: a DbSession, a sqlalchemy Session or "
        f"Connection, an AsyncSession or AsyncConnection; got a {_name_of(session)}"
    )


async def run_in(session: Any, work: Callable[[UnitOfWork], T]) -> T:
    """Run ``work`` with the transaction of an asynchronous session.

    Raises:
        ConfigurationError: It is not an asynchronous session.
    """
    if not is_async(session):
        unit_of(session)  # raises if it is not a session
        raise ConfigurationError(
            f"a {type(session).__name__} is synchronous: write 'with inbox.once(session, msg)', "
            "'outbox.add(session, …)', or another method without _async"
        )
    if not hasattr(session, "run_sync"):  # an async_scoped_session; this is the session of its scope
        session = session()
    result: T = await session.run_sync(lambda inner: work(unit_of(inner)))
    return result


def is_async(session: object) -> bool:
    """Return True if it is one of SQLAlchemy's asynchronous sessions. Does not import ``asyncio`` support for it."""
    return any(
        kind.__module__.startswith("sqlalchemy.ext.asyncio")
        and kind.__name__ in {"AsyncSession", "AsyncConnection", "async_scoped_session"}
        for kind in type(session).__mro__
    )


def _connection_of(session: Session) -> Connection:
    try:
        return session.connection()
    except UnboundExecutionError as error:
        raise ConfigurationError(
            "the Session has no bind of its own, so the database of the inbox and the outbox is not known: "
            "pass session.connection(bind_arguments={…}) of that database instead"
        ) from error
    except SQLAlchemyError as error:
        raise as_write_error(error, _ABOUT, connecting=session.get_bind().engine) from error


def _reject_autocommit(connection: Connection) -> None:
    """Raise in autocommit mode: the row would be committed separately, without an error."""
    if connection._is_autocommit_isolation():  # noqa: SLF001 - the public method costs a round trip
        raise ConfigurationError("the connection is in AUTOCOMMIT mode: the inbox and the outbox need a transaction")


def _name_of(session: object) -> str:
    return session.__name__ if isinstance(session, type) else type(session).__name__
