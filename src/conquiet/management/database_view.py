"""Read inbox, outbox and lock waits of one database, and unpark messages. Statements are bounded."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from conquiet.core.validation import require_table
from conquiet.errors import ConfigurationError
from conquiet.management.models import Report

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from conquiet.transactional.outbox import ParkedMessage

_LOCK_WAITS_POSTGRES: Final = (
    "SELECT pid, (pg_blocking_pids(pid))[1], EXTRACT(EPOCH FROM now() - query_start)::int "
    "FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0 LIMIT 20"
)
_MOST_ROWS: Final = 1_000_000
_PAGE: Final = 1_000
_LARGEST_SEQ: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TargetBacklog(Report):
    """The outbox rows of one target.

    Attributes:
        target: Name of the target.
        waiting: Rows to publish, delayed ones included.
        parked: Rows that were parked after too many failures.
        oldest_age_s: Age of the oldest row that is not parked; 0 if there is none.
    """

    target: str
    waiting: int
    parked: int
    oldest_age_s: float


@dataclass(frozen=True, slots=True)
class InboxSize(Report):
    """Size of an inbox.

    Attributes:
        rows: Number of rows, counted up to a million.
        complete: True if all rows were counted.
        oldest_age_s: Age of the oldest row; None if there is none.
    """

    rows: int
    complete: bool
    oldest_age_s: float | None


@dataclass(frozen=True, slots=True)
class LockWait:
    """A connection that waits for a lock, the connection that holds the lock, and the time waited."""

    waiter: int
    holder: int
    seconds: int


class DatabaseView:
    """Reads one database for operators, and unparks messages. Every call blocks.

    Args:
        engine: The database.
        inbox: Name of the inbox table.
        outbox: Name of the outbox table.
    """

    def __init__(self, engine: "Engine", *, inbox: str = "conquiet_inbox", outbox: str = "conquiet_outbox") -> None:
        from conquiet.transactional import Outbox

        self._engine = engine
        self._inbox = require_table("inbox", inbox)
        self._outbox = Outbox(outbox)

    def backlog(self) -> list[TargetBacklog]:
        """Return the outbox by target, the oldest backlog first. Reads an index of the whole outbox."""
        found = [
            TargetBacklog(target, one.waiting, one.parked, one.oldest_age_s)
            for target, one in self._outbox.backlog(self._engine).items()
        ]
        return sorted(found, key=lambda one: (-one.oldest_age_s, one.target))

    def parked(self, *, limit: int = 100) -> "list[ParkedMessage]":
        """Return the oldest parked messages, without payloads."""
        return self._outbox.parked(self._engine, limit=limit)

    def inbox(self, *, most_rows: int = _MOST_ROWS) -> InboxSize:
        """Return the size of the inbox. Counts at most ``most_rows``: counting a large table takes minutes."""
        from conquiet.db import DbSession
        from conquiet.errors import DbWriteError
        from conquiet.transactional.schema import if_missing
        from conquiet.transactional.sql_dialect import dialect_named

        sql = dialect_named(self._engine.dialect.name)
        try:
            with DbSession(self._engine) as session:
                rows = int(session.execute_scalar(sql.inbox_count(self._inbox), {"limit": most_rows + 1}))
                age_us = session.execute_scalar(sql.inbox_oldest(self._inbox))
        except DbWriteError as error:
            raise if_missing(error, self._inbox) from error.__cause__
        age_s = None if age_us is None else max(0.0, float(age_us) / 1e6)
        return InboxSize(min(rows, most_rows), rows <= most_rows, age_s)

    def has_effect(self, stream: str, group: str, message_id: str) -> bool:
        """Return whether the inbox has the row of a message: its effect is committed."""
        from conquiet.db import DbSession
        from conquiet.transactional import Inbox, InboxKey

        with DbSession(self._engine) as session:
            return Inbox(self._inbox).contains(session, InboxKey(stream, group, message_id))

    def lock_waits(self) -> list[LockWait]:
        """Return the lock waits that this user may see."""
        from sqlalchemy import text

        from conquiet.management.doctor.mysql import find_lock_waits

        dialect = self._engine.dialect
        with self._engine.connect() as connection:
            if dialect.name == "postgresql":
                rows: Iterable[Any] = connection.execute(text(_LOCK_WAITS_POSTGRES)).all()
            elif dialect.name in {"mysql", "mariadb"}:
                rows = find_lock_waits(connection, mariadb=bool(getattr(dialect, "is_mariadb", False)))
            else:
                rows = ()
            return [LockWait(int(waiter), int(holder or 0), int(age or 0)) for waiter, holder, age in rows]

    def unpark(self, seqs: Iterable[int]) -> int:
        """Unpark rows, so that the relay retries them; return how many of them were parked."""
        # Drivers refuse a larger number, which no row can have.
        return sum(self._outbox.unpark(self._engine, seq) for seq in seqs if 0 < seq <= _LARGEST_SEQ)

    def unpark_all(self, *, target: str | None = None) -> int:
        """Unpark all rows, or all rows of one target; return how many there were.

        A row that is parked again during the call is not unparked twice.
        """
        done, last = 0, 0
        while page := self._outbox.parked(self._engine, limit=_PAGE, after=last):
            last = page[-1].seq
            done += self.unpark(one.seq for one in page if target is None or one.target == target)
        return done

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()


def connect_database(url: str, *, timeout_s: float = 3.0) -> "Engine":
    """Return an engine for pages: ``timeout_s`` limits the time of each statement."""
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
