"""Inbox and outbox in the transaction of a Django connection.

In a request, inside ``transaction.atomic()`` or with ``ATOMIC_REQUESTS``:

    emit(app, "order.paid", OrderPaid(…))           # a row of the outbox: published if the block commits

In a worker, a handler that uses the ORM has a ``DjangoTransaction`` parameter, and its effect happens once:

    @app.handler("order.paid")
    def book(order: OrderPaid, session: DjangoTransaction) -> None:
        Booking.objects.create(order_id=order.order_id)

    BEGIN ─ inbox row ─ handler ─ COMMIT          one atomic block; an error rolls all of it back

Errors of Django's database layer become conquiet's here: a lost connection is an ``InfrastructureError``, a lost reply
to COMMIT a ``CommitUnknownError``.

See docs/decisions/0024.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections, transaction
from django.db.utils import Error as DjangoError
from django.db.utils import InterfaceError, OperationalError
from sqlalchemy import TextClause
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import DBAPIError

from conquiet.core.functions import is_coroutine_function
from conquiet.core.tracing import Headers
from conquiet.db.errors import ENDS_TRANSACTION, OperationInfo, as_write_error, fault_of
from conquiet.errors import ConfigurationError, DbWriteError, LifecycleError
from conquiet.transactional.session_source import Check, SyncSource, Work
from conquiet.transactional.sql_dialect import dialect_named
from conquiet.transactional.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from conquiet.app.application import App
    from conquiet.core.deduplicator import Deduplicator

T = TypeVar("T")

_ABOUT = OperationInfo("a statement of the inbox or outbox")
_BLOCK = OperationInfo("the transaction of a handler")
_OF_CONNECTIONS = (OperationalError, InterfaceError)


class DjangoTransaction:
    """The atomic block that is open on a Django connection. Use it as a session of ``app.emit_sync`` and handlers.

    Args:
        using: Alias of the database.

    Raises:
        ConfigurationError: No atomic block is open: the row would be committed separately.
    """

    def __init__(self, using: str = DEFAULT_DB_ALIAS) -> None:
        self.using = using
        self._connection = connections[using]
        self._require_block()

    @classmethod
    def conquiet_source(cls) -> SyncSource:
        """Return the source of the handlers' transactions; called by ``App``."""
        return DjangoSource()

    def conquiet_unit_of_work(self) -> "_OfDjango":
        """Return the transaction as a ``UnitOfWork`` for inbox and outbox."""
        self._require_block()  # it may have ended since
        return _OfDjango(self._connection)

    def _require_block(self) -> None:
        if not self._connection.in_atomic_block:
            raise ConfigurationError(
                f"no transaction is open on Django's database {self.using!r}: call it inside 'with "
                'transaction.atomic():\', or set DATABASES["default"]["ATOMIC_REQUESTS"] = True'
            )


def emit(
    app: "App",
    event: str,
    payload: Any = None,
    *,
    delay_s: float | None = None,
    at: datetime | None = None,
    key: str | None = None,
    headers: Headers | None = None,
    using: str = DEFAULT_DB_ALIAS,
) -> str:
    """Emit a message in the current atomic block and return its id. It is published if the block commits.

    Args:
        app: The application.
        event: An event that the app handles or declares.
        payload: An object of the event's model, or a mapping that fits it.
        delay_s: Seconds until it is due.
        at: The moment it is due, with a time zone.
        key: Messages of one key run one at a time and in order, over all hosts; see docs/ordering.md.
        headers: Names and texts that are sent with the message.
        using: Alias of the database. The relays of ``app`` read its own database; another one needs a relay of its
            outbox, or the message waits there.

    Raises:
        ConfigurationError: No atomic block is open, the event is unknown, or an argument is wrong. Nothing was written.
        PayloadError: The payload does not fit the event's model. Nothing was written.
    """
    session = DjangoTransaction(using)
    return app.emit_sync(event, payload, session=session, delay_s=delay_s, at=at, key=key, headers=headers)


class DjangoSource(SyncSource):
    """Run each message in its own atomic block, in Django's default database."""

    takes_batches = False

    def __init__(self) -> None:  # without super(): there is no engine
        self.capacity = None

    def require_handler(self, handler: Callable[..., Any]) -> None:
        """Raise ``ConfigurationError`` for an ``async def`` handler: Django's transactions are synchronous."""
        if is_coroutine_function(handler):
            raise ConfigurationError(
                "a handler with a DjangoTransaction must be a plain function, not 'async def': Django has no "
                "transactions for coroutines"
            )

    async def effect_once(
        self, inbox: "Deduplicator", msg: Any, work: Work, before_commit: Check | None = None
    ) -> bool:
        """Run ``await work(session)`` in an atomic block unless the message has had its effect. True if it ran."""
        close_old_connections()  # as for each request: an old or broken connection is not used again
        is_committing = False
        try:
            with _translated(_BLOCK, DEFAULT_DB_ALIAS, lambda: is_committing), transaction.atomic(durable=True):
                session = DjangoTransaction()
                with inbox.once(session, msg) as first_time:
                    if first_time:
                        with _hidden_errors_raised(connections[DEFAULT_DB_ALIAS]):
                            await work(session)
                        if before_commit is not None:
                            before_commit()
                is_committing = True
        finally:
            close_old_connections()
        return bool(first_time)

    async def read(self, work: Callable[[UnitOfWork], T]) -> T:
        """Return ``work(unit)``, run in its own atomic block: it reads whether a job was cancelled."""
        close_old_connections()
        with _translated(_BLOCK, DEFAULT_DB_ALIAS), transaction.atomic(durable=True):
            return work(DjangoTransaction().conquiet_unit_of_work())


@contextmanager
def _hidden_errors_raised(connection: Any) -> Iterator[None]:
    """Raise the error of a statement that has ended the transaction, although the handler caught it.

    COMMIT reports nothing of it. PostgreSQL rolls back; after a deadlock MySQL commits what came later, without the
    inbox row.
    """
    hidden: list[DjangoError] = []

    def watch(execute: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return execute(*arguments)
        except DjangoError as error:
            # Inside an inner atomic block Django rolls back to its savepoint, or marks the transaction for rollback.
            if not any(connection.savepoint_ids) and (
                connection.vendor == "postgresql" or fault_of(error.__cause__ or error) in ENDS_TRANSACTION
            ):
                hidden.append(error)
            raise

    with connection.execute_wrapper(watch):
        yield
    if hidden:
        raise hidden[0]
    if connection.get_rollback():
        raise LifecycleError(
            "the handler's transaction was marked for rollback by an error that it caught: let the error leave the "
            "handler, or catch it outside of an inner atomic block"
        )


class _OfDjango(UnitOfWork):
    """A Django transaction as a ``UnitOfWork``."""

    def __init__(self, connection: Any) -> None:
        database: Any = _database_of(connection.alias)  # identifies the database
        super().__init__(database, dialect_named(connection.vendor))
        self._connection = connection

    @property
    def transaction(self) -> object:
        """An object with the lifetime of the outermost atomic block, which COMMIT ends."""
        blocks = self._connection.atomic_blocks
        return _marks.setdefault(blocks[0], _Mark()) if blocks else self

    def execute(self, statement: TextClause, binds: Mapping[str, Any]) -> int:
        """Run a statement and return its row count."""
        with _translated(_ABOUT, self._connection.alias), self._connection.cursor() as cursor:
            cursor.execute(_pyformat(statement), dict(binds))
            return int(cursor.rowcount)

    def after_commit(self, step: Callable[[], None]) -> None:
        """Call ``step`` once the transaction has committed; never if it rolls back."""
        transaction.on_commit(step, using=self._connection.alias)

    def _record_id(self, row: Mapping[str, Any]) -> None:
        """Do nothing: Django sends the COMMIT, and does not resolve a lost reply."""

    def fetch_all(self, statement: TextClause, binds: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return all rows."""
        with _translated(_ABOUT, self._connection.alias), self._connection.cursor() as cursor:
            cursor.execute(_pyformat(statement), dict(binds))
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


class _Mark:
    """Identifies a transaction or a database in a weak dictionary."""


_marks: "WeakKeyDictionary[Any, _Mark]" = WeakKeyDictionary()


@cache
def _database_of(_alias: str) -> _Mark:
    return _Mark()


@cache
def _pyformat(statement: TextClause) -> str:
    """Return a statement with parameters as every backend of Django takes them: ``%(name)s``."""
    return str(statement.compile(dialect=DefaultDialect(paramstyle="pyformat")))


@contextmanager
def _translated(info: OperationInfo, alias: str, committing: Callable[[], bool] = lambda: False) -> Iterator[None]:
    try:
        yield
    except DjangoError as error:
        raise _as_ours(error, info, alias, committing=committing()) from (error.__cause__ or error)


def _as_ours(error: DjangoError, info: OperationInfo, alias: str, *, committing: bool) -> DbWriteError:
    """Translate an error of Django. Its cause is the driver's error, which has the error number."""
    cause = error.__cause__ or error
    raw = connections[alias].connection  # the driver's connection; None once Django has closed it
    is_lost = isinstance(error, _OF_CONNECTIONS) and (raw is None or bool(getattr(raw, "closed", False)))
    described = DBAPIError(None, None, cause, connection_invalidated=is_lost)
    return as_write_error(described, info, committing=committing)
