"""Read inbox, outbox and lock waits of one database, by bounded statements with a time limit."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from conquiet.errors import ConfigurationError
from conquiet.management.outbox import InboxSize, TargetBacklog, inbox_size, outbox_backlog, unpark, unpark_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Engine

    from conquiet.transactional import Outbox
    from conquiet.transactional.outbox import ParkedMessage

_LOCK_WAITS_POSTGRES: Final = (
    "SELECT pid, (pg_blocking_pids(pid))[1], EXTRACT(EPOCH FROM now() - query_start)::int "
    "FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0 LIMIT 20"
)


@dataclass(frozen=True, slots=True)
class LockWait:
    """A connection that waits for a lock, the connection that holds the lock, and the time waited."""

    waiter: int
    holder: int
    seconds: int


class DatabaseView:
    """Reads one database for operators. Every call blocks.

    Args:
        url: The database.
        inbox: Name of the inbox table.
        outbox: Name of the outbox table.
        timeout_s: Time limit of a statement.
    """

    def __init__(self, url: str, *, inbox: str, outbox: str, timeout_s: float = 3.0) -> None:
        self._url = url
        self._inbox = inbox
        self._outbox_table = outbox
        self._timeout_s = timeout_s
        self._engine: Engine | None = None

    @property
    def dialect(self) -> str:
        """Name of the kind of database."""
        return self._url.partition(":")[0].partition("+")[0]

    def backlog(self) -> list[TargetBacklog]:
        """Return the outbox by target."""
        return outbox_backlog(self._connect(), self._outbox())

    def parked(self, *, limit: int = 100) -> "list[ParkedMessage]":
        """Return the oldest parked messages, without payloads."""
        return self._outbox().parked(self._connect(), limit=limit)

    def inbox(self) -> InboxSize:
        """Return the size of the inbox, counted up to 100,000 rows."""
        return inbox_size(self._connect(), self._inbox, most_rows=100_000)

    def has_effect(self, stream: str, group: str, message_id: str) -> bool:
        """Return whether the inbox has the row of a message: its effect is committed."""
        from conquiet.db import DbSession
        from conquiet.transactional import Inbox, InboxKey

        with DbSession(self._connect()) as session:
            return Inbox(self._inbox).contains(session, InboxKey(stream, group, message_id))

    def lock_waits(self) -> list[LockWait]:
        """Return the lock waits that this user may see."""
        from sqlalchemy import text

        from conquiet.management.doctor.mysql import find_lock_waits

        engine = self._connect()
        with engine.connect() as connection:
            if engine.dialect.name == "postgresql":
                rows: Iterable[Any] = connection.execute(text(_LOCK_WAITS_POSTGRES)).all()
            elif engine.dialect.name in {"mysql", "mariadb"}:
                rows = find_lock_waits(connection, mariadb=bool(getattr(engine.dialect, "is_mariadb", False)))
            else:
                rows = ()
            return [LockWait(int(waiter), int(holder or 0), int(age or 0)) for waiter, holder, age in rows]

    def unpark(self, seqs: "Iterable[int]") -> int:
        """Unpark these messages, so that the relay retries them; return how many were parked."""
        return unpark(self._connect(), self._outbox(), seqs)

    def unpark_target(self, target: str) -> int:
        """Unpark all messages of a target, so that the relay retries them; return how many there were."""
        return unpark_all(self._connect(), self._outbox(), target=target)

    def close(self) -> None:
        """Close the connections."""
        if self._engine is not None:
            self._engine.dispose()

    def _outbox(self) -> "Outbox":
        from conquiet.transactional import Outbox

        return Outbox(self._outbox_table)

    def _connect(self) -> "Engine":
        if self._engine is None:
            self._engine = _create_engine(self._url, self._timeout_s)
        return self._engine


def _create_engine(url: str, timeout_s: float) -> "Engine":
    from sqlalchemy import create_engine, event
    from sqlalchemy.engine import make_url

    connect: dict[str, Any] = {}
    seconds = max(1, round(timeout_s))
    driver = make_url(url).drivername
    if driver in {"mysql+pymysql", "mariadb+pymysql", "mysql", "mariadb"}:
        connect = {"connect_timeout": seconds, "read_timeout": seconds + 1}
    elif driver.startswith("postgresql+psycopg"):
        connect = {"connect_timeout": max(2, seconds), "options": f"-c statement_timeout={seconds * 1000}"}
    engine = create_engine(url, hide_parameters=True, pool_pre_ping=True, pool_size=2, connect_args=connect)
    if engine.dialect.name == "sqlite" and engine.url.database in {None, "", ":memory:"}:
        raise ConfigurationError("a database in memory cannot be shown; name a file: sqlite:///shop.db")
    if engine.dialect.name in {"mysql", "mariadb"}:

        @event.listens_for(engine, "connect")
        def limit(connection: Any, _record: Any) -> None:
            version = str(connection.get_server_info()).lower()
            limit = (
                f"SET SESSION max_statement_time={seconds}"
                if "mariadb" in version
                else f"SET SESSION max_execution_time={seconds * 1000}"
            )
            with connection.cursor() as cursor:
                cursor.execute(limit)

    return engine
