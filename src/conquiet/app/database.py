"""The database of an application: engines for every kind of session of a handler.

    database=                 sessions of handlers
    a URL                     all five; an engine per driver, synchronous or asynchronous, on first use
    Engine, sessionmaker      DbSession, Session, Connection
    AsyncEngine, async_sessionmaker    AsyncSession, AsyncConnection
    a function                as for the URL that it returns; called when an engine is made

The relay and the creation of tables need a synchronous engine. If only an asynchronous engine is given, it is made from
the URL of that engine, with a synchronous driver.
"""

from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from conquiet.app.parameters import SessionKind
from conquiet.core.extras import require_extra
from conquiet.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
    from sqlalchemy.orm import sessionmaker

    AnyDatabase = (
        str | URL | Callable[[], str | URL] | Engine | sessionmaker[Any] | AsyncEngine | async_sessionmaker[Any]
    )

_SYNC_DRIVER: Final = {"asyncmy": "pymysql", "aiomysql": "pymysql", "asyncpg": "psycopg", "aiosqlite": "pysqlite"}
"""The synchronous driver for each asynchronous driver. ``psycopg`` is both."""

_ASYNC_DRIVER: Final = {"mysql": "asyncmy", "mariadb": "asyncmy", "postgresql": "psycopg", "sqlite": "aiosqlite"}
_DEFAULT_DRIVER: Final = {"mysql": "pymysql", "mariadb": "pymysql", "postgresql": "psycopg"}
"""SQLAlchemy's defaults are mysqlclient and psycopg2, which conquiet does not install."""

_POOL_SIZE: Final = 5
"""SQLAlchemy's default."""

_ASYNC_ONLY: Final = frozenset(_SYNC_DRIVER)


class Database:
    """Read the argument ``database`` of an application. Engines are made on first use.

    An engine that is made here for a server has one connection per concurrent handler. A synchronous engine that is
    made for a given asynchronous engine has the same URL, but not its ``connect_args``.

    Args:
        given: URL, engine or session maker.

    Attributes:
        concurrency: Maximum concurrent handlers.

    Raises:
        ConfigurationError: It is none of these, or the URL cannot be read.
    """

    def __init__(self, given: "AnyDatabase") -> None:
        require_extra("mysql", "sqlalchemy")
        self._engine: Engine | None = None
        self._maker: sessionmaker[Any] | None = None
        self._async_engine: AsyncEngine | None = None
        self._async_maker: async_sessionmaker[Any] | None = None
        self._url_or_function: URL | Callable[[], str | URL] | None = None
        self.concurrency = 1
        self._owns_engine = False
        self._owns_async_engine = False
        self._take(given)

    def require(self, kind: SessionKind, *, name: str, what: str) -> None:
        """Raise ``ConfigurationError`` if this database cannot give that kind of session.

        Args:
            kind: The kind.
            name: The parameter with this session.
            what: The function that has the parameter.
        """
        if self._url_or_function is not None or kind.is_async == self._is_async:
            return
        given, possible = (
            ("an asynchronous engine", "AsyncSession or AsyncConnection")
            if self._is_async
            else ("a synchronous engine", "Session, Connection or DbSession")
        )
        raise ConfigurationError(
            f"parameter {name!r} of the {what} is a {kind.value}, but the app's database is {given}: ask for "
            f"{possible}, or give the app the database as a URL, which serves both kinds"
        )

    def source_for(self, kind: SessionKind) -> Any:
        """Return what ``transactional.for_processor`` takes as ``engine`` for handlers with this kind of session."""
        match kind:
            case SessionKind.DB_SESSION | SessionKind.CONNECTION:
                return self.sync_engine()
            case SessionKind.SESSION:
                return self._sync_maker()
            case SessionKind.ASYNC_CONNECTION:
                return self._asynchronous()
            case SessionKind.ASYNC_SESSION:
                return self._asynchronous_maker()
            case SessionKind.FOREIGN:
                raise ConfigurationError("a session of another framework comes from that framework")

    def sync_engine(self) -> "Engine":
        """Return a synchronous engine for this database.

        Raises:
            ConfigurationError: The database is in the memory of an asynchronous engine, so no other can see it.
        """
        from sqlalchemy import create_engine

        if self._engine is None:
            url = self._url
            if url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"} and self._is_async:
                raise ConfigurationError(
                    "the app's database is in the memory of its AsyncEngine, where the relay cannot read it: "
                    "name a file, such as sqlite+aiosqlite:///shop.db"
                )
            self._engine = create_engine(with_driver(url, asynchronous=False), **self._options(url))
            self._owns_engine = True
        return self._engine

    async def close(self) -> None:
        """Close the engines that were made here. They are made again when they are needed."""
        if self._engine is not None and self._owns_engine:
            engine, self._engine, self._maker = self._engine, None, None
            engine.dispose()
        if self._async_engine is not None and self._owns_async_engine:
            async_engine, self._async_engine, self._async_maker = self._async_engine, None, None
            await async_engine.dispose()

    @property
    def _url(self) -> "URL":
        given = self._url_or_function
        if given is None:
            assert self._async_engine is not None  # noqa: S101 - the only kind that is given alone
            return self._async_engine.url
        return parsed_url(given()) if callable(given) else given

    @property
    def _is_async(self) -> bool:
        return self._async_engine is not None

    def _options(self, url: "URL") -> dict[str, Any]:
        options: dict[str, Any] = {"hide_parameters": True}
        if url.get_backend_name() != "sqlite":
            options["pool_size"] = max(_POOL_SIZE, self.concurrency)
        return options

    def _sync_maker(self) -> "sessionmaker[Any]":
        from sqlalchemy.orm import sessionmaker

        if self._maker is None:
            self._maker = sessionmaker(self.sync_engine())
        return self._maker

    def _asynchronous(self) -> "AsyncEngine":
        from sqlalchemy.ext.asyncio import create_async_engine

        if self._async_engine is None:
            url = with_driver(self._url, asynchronous=True)
            self._async_engine = create_async_engine(url, **self._options(url))
            self._owns_async_engine = True
        return self._async_engine

    def _asynchronous_maker(self) -> "async_sessionmaker[Any]":
        from sqlalchemy.ext.asyncio import async_sessionmaker

        if self._async_maker is None:
            self._async_maker = async_sessionmaker(self._asynchronous(), expire_on_commit=False)
        return self._async_maker

    def _take(self, given: object) -> None:
        from sqlalchemy import URL

        from conquiet.transactional.session_source import SyncSource, source_of

        if isinstance(given, str | URL):
            self._url_or_function = parsed_url(given)
            return
        if isinstance(given, FunctionType | partial):
            self._url_or_function = given
            return
        try:
            source = source_of(given)
        except ConfigurationError as error:
            raise ConfigurationError(
                "database must be a URL, an Engine, a sessionmaker, an AsyncEngine or an async_sessionmaker, got a "
                f"{type(given).__name__}: {error}"
            ) from None
        if isinstance(source, SyncSource):
            self._engine, self._maker = source.engine, source.maker
        else:
            self._async_engine, self._async_maker = source.engine, source.maker


def parsed_url(given: "str | URL") -> "URL":
    """Return a database URL with a driver that conquiet installs.

    Raises:
        ConfigurationError: It cannot be read. Nothing of it is quoted.
    """
    from sqlalchemy import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        url = make_url(given)
    except (SQLAlchemyError, ValueError, TypeError):
        raise ConfigurationError(
            "the database URL cannot be read; write it as mysql+pymysql://user@host/database"
        ) from None
    driver = _DEFAULT_DRIVER.get(url.drivername)  # without "+driver" it is the name of the database
    return url if driver is None else url.set(drivername=f"{url.drivername}+{driver}")


def with_driver(url: "URL", *, asynchronous: bool) -> "URL":
    """Return the URL with a driver of the wanted kind; as it is if its own driver is of that kind."""
    backend, _, driver = url.drivername.partition("+")
    if asynchronous:
        if driver in _ASYNC_ONLY or driver == "psycopg" or backend not in _ASYNC_DRIVER:
            return url
        return url.set(drivername=f"{backend}+{_ASYNC_DRIVER[backend]}")
    return url.set(drivername=f"{backend}+{_SYNC_DRIVER[driver]}") if driver in _SYNC_DRIVER else url


def require_tables(connection: "Connection", tables: "Collection[str]") -> None:
    """Raise ``ConfigurationError`` if one of these tables does not exist."""
    from sqlalchemy import inspect

    from conquiet.db.engine_pool import database_address

    inspector = inspect(connection)
    missing = [table for table in sorted(tables) if not _has_table(inspector, table)]
    if missing:
        what = f"the table {missing[0]} does" if len(missing) == 1 else f"the tables {', '.join(missing)} do"
        raise ConfigurationError(
            f"{what} not exist in the app's database ({database_address(connection.engine)}): run "
            "'conquiet db init module:app' once, or call app.create_tables()"
        )


def _has_table(inspector: Any, table: str) -> bool:
    schema, _, name = table.rpartition(".")
    return bool(inspector.has_table(name, schema=schema or None))
