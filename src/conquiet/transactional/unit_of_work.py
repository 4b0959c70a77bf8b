"""Run statements of the inbox and the outbox in the caller's transaction, which the caller commits.

    DbSession                      its own execute: translated, counted, refused after a conflict
    Session, scoped_session        the connection of its transaction, which begins if there is none yet
    Connection                     itself
    AsyncSession, AsyncConnection  the same inside ``run_sync``: one greenlet for all statements of a call
    of another framework           the result of its method ``conquiet_unit_of_work()``

Driver errors become ``DbWriteError`` here, for every kind of session, raised ``from`` the driver's error.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import TextClause
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, scoped_session

from conquiet.db.commit_status import record_transaction
from conquiet.db.errors import OperationInfo, as_write_error
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError
from conquiet.transactional.sql_dialect import SqlDialect, dialect_named

T = TypeVar("T")
Binds = Mapping[str, Any]

SyncSession = DbSession | Session | Connection | scoped_session[Any]

_AUTOCOMMIT = "AUTOCOMMIT"
_POSTGRES = "postgresql"
_ABOUT = OperationInfo("a statement of the inbox or outbox")


class UnitOfWork(Protocol):
    """One transaction, seen by the inbox and the outbox."""

    @property
    def engine(self) -> Engine:
        """The engine of the transaction."""
        ...

    @property
    def dialect(self) -> SqlDialect:
        """The SQL of its database."""
        ...

    @property
    def transaction(self) -> object:
        """An object that lives as long as the transaction; known after the first statement."""
        ...

    @property
    def owner(self) -> "DbSession | Connection":
        """The session or connection that ends the transaction."""
        ...

    def execute(self, statement: TextClause, binds: Binds) -> int:
        """Run a statement and return its row count."""
        ...

    def insert(self, statement: TextClause, binds: Binds) -> int:
        """Write an inbox row, record the transaction id that the statement returns, and return the row count."""
        ...

    def insert_many(self, statement: TextClause, binds: Binds) -> set[bytes] | None:
        """Run the statement that reports which inbox rows it wrote; None if it wrote all of them."""
        ...

    def fetch_one(self, statement: TextClause, binds: Binds) -> Mapping[str, Any] | None:
        """Return the only row, or None."""
        ...

    def fetch_all(self, statement: TextClause, binds: Binds) -> Sequence[Mapping[str, Any]]:
        """Return all rows."""
        ...


class _OfDbSession:
    """The transaction of a ``DbSession``."""

    __slots__ = ("_session", "dialect", "engine")

    def __init__(self, session: DbSession) -> None:
        self._session = session
        self.engine = session.engine
        self.dialect = dialect_named(session.engine.dialect.name)

    @property
    def transaction(self) -> object:
        return self._session

    @property
    def owner(self) -> DbSession:
        return self._session

    def execute(self, statement: TextClause, binds: Binds) -> int:
        return self._session.execute(statement, binds)

    def insert(self, statement: TextClause, binds: Binds) -> int:
        if self.dialect.name != _POSTGRES:
            return self.execute(statement, binds)
        return _record_row(self._session.connection, self.fetch_one(statement, binds))

    def insert_many(self, statement: TextClause, binds: Binds) -> set[bytes] | None:
        row = self.fetch_one(statement, binds)
        _record_row(self._session.connection, row)
        return written_ids(row)

    def fetch_one(self, statement: TextClause, binds: Binds) -> Mapping[str, Any] | None:
        return self._session.fetch_one(statement, binds)

    def fetch_all(self, statement: TextClause, binds: Binds) -> Sequence[Mapping[str, Any]]:
        return self._session.fetch_all(statement, binds)


class _OfConnection:
    """The transaction that is open on a connection, or that its first statement begins."""

    __slots__ = ("_connection", "dialect", "engine")

    def __init__(self, connection: Connection) -> None:
        _refuse_autocommit(connection)
        self._connection = connection
        self.engine = connection.engine
        self.dialect = dialect_named(connection.dialect.name, connection.dialect.driver)

    @property
    def transaction(self) -> object:
        return self._connection.get_transaction()

    @property
    def owner(self) -> Connection:
        return self._connection

    def execute(self, statement: TextClause, binds: Binds) -> int:
        try:
            return self._connection.execute(statement, binds).rowcount
        except SQLAlchemyError as error:
            raise as_write_error(error, _ABOUT) from error

    def insert(self, statement: TextClause, binds: Binds) -> int:
        if self.dialect.name != _POSTGRES:
            return self.execute(statement, binds)
        return _record_row(self._connection, self.fetch_one(statement, binds))

    def insert_many(self, statement: TextClause, binds: Binds) -> set[bytes] | None:
        row = self.fetch_one(statement, binds)
        _record_row(self._connection, row)
        return written_ids(row)

    def fetch_one(self, statement: TextClause, binds: Binds) -> Mapping[str, Any] | None:
        try:
            row = self._connection.execute(statement, binds).one_or_none()
        except SQLAlchemyError as error:
            raise as_write_error(error, _ABOUT) from error
        return None if row is None else row._asdict()

    def fetch_all(self, statement: TextClause, binds: Binds) -> Sequence[Mapping[str, Any]]:
        try:
            return [row._asdict() for row in self._connection.execute(statement, binds).all()]
        except SQLAlchemyError as error:
            raise as_write_error(error, _ABOUT) from error


def _record_row(connection: Connection, row: Mapping[str, Any] | None) -> int:
    if row is None:
        return 0
    record_transaction(connection, row)
    return 1


def written_ids(row: Mapping[str, Any] | None) -> set[bytes] | None:
    """Return the ids of the rows that a statement reports as written; None if all of them were."""
    assert row is not None  # noqa: S101 - it counts, and always returns a row
    written: str | None = row["written"]
    return None if written is None else {bytes.fromhex(each) for each in written.split(",")}


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
    except SQLAlchemyError as error:
        if session.bind is None:
            raise ConfigurationError(
                "the Session has no bind of its own, so the database of the inbox and the outbox is not known: "
                "pass session.connection(bind_arguments={…}) of that database instead"
            ) from error
        raise as_write_error(error, _ABOUT, connecting=True) from error


def _refuse_autocommit(connection: Connection) -> None:
    """Raise in autocommit mode: the row would be committed separately, without an error."""
    if connection._is_autocommit_isolation():  # noqa: SLF001 - the public method costs a round trip
        raise ConfigurationError(
            f"the connection is in {_AUTOCOMMIT} mode: the inbox and the outbox need a transaction"
        )


def _name_of(session: object) -> str:
    return session.__name__ if isinstance(session, type) else type(session).__name__
