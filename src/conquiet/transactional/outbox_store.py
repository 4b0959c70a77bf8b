"""The relay's access to the database: its connections, and one target's rows. One transaction each batch.

    without a key    lock_unkeyed   lock due rows, skipping what another relay holds: one statement
    with a key       scan_keyed     due rows, not locked; bounded
                     lock_heads     the oldest of each key, by primary key, skipping what another relay holds
                     read_keys      these keys from their beginning: read after the locks, so nothing is missed
    both             settle         delete published rows, postpone or park refused ones

All of it needs READ COMMITTED: each statement sees what was committed before it, and no gap is locked.

See docs/decisions/0025.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from conquiet.core.tracing import read_headers
from conquiet.db.dialects import is_mysql, is_postgres
from conquiet.db.engine_pool import separate_engine
from conquiet.db.session import DbSession
from conquiet.transactional.relay_decisions import Candidate, OutboxMessage, Park, RetryRow
from conquiet.transactional.sql_dialect import SqlDialect
from conquiet.transactional.statements import outbox_statements
from conquiet.transactional.target_publisher import IDLE_LIMIT_S

OutboxPosition = tuple[Any, int]
"""The end of a scan: due time and seq."""


class OutboxStore:
    """Statements on one outbox table for one target."""

    def __init__(self, table: str, target: str, dialect: SqlDialect) -> None:
        self._target = target.encode()
        self._dialect = dialect
        self._statements = outbox_statements(dialect, table)

    def begin(self, session: DbSession) -> None:
        """Keep other relays out where rows cannot be locked one by one."""
        if self._statements.exclude_relays is not None:
            session.execute(self._statements.exclude_relays)

    def lock_unkeyed(self, session: DbSession, *, count: int) -> list[OutboxMessage]:
        """Lock due rows without a key and return them."""
        rows = session.fetch_all(self._statements.lock_unkeyed, {"target": self._target, "count": count})
        return [_message(row) for row in rows]

    def scan_keyed(
        self, session: DbSession, *, after: OutboxPosition | None, count: int
    ) -> tuple[list[Candidate], float]:
        """Return due rows with a key behind a position, and the age in seconds of the first."""
        binds: dict[str, Any] = {"target": self._target, "count": count}
        if after is None:
            rows = session.fetch_all(self._statements.scan_keyed, binds)
        else:
            rows = session.fetch_all(self._statements.scan_keyed_after, {**binds, "at": after[0], "after": after[1]})
        age_s = max(0.0, float(rows[0]["age"]) / 1e6) if rows else 0.0
        return [Candidate(row["seq"], bytes(row["k"])) for row in rows], age_s

    def position_of(self, session: DbSession, seq: int) -> OutboxPosition | None:
        """Return where a scan that ended with this row continues; None if the row is gone."""
        due_at = session.execute_scalar(self._statements.due_time, {"seq": seq})
        return None if due_at is None else (due_at, seq)

    def lock_heads(self, session: DbSession, seqs: Sequence[int]) -> dict[int, bytes]:
        """Lock the rows that are free, not parked, due and the oldest of their keys; return their keys."""
        return {row["seq"]: bytes(row["k"]) for row in session.fetch_all(self._statements.lock_heads, {"seqs": seqs})}

    def read_keys(self, session: DbSession, keys: Sequence[bytes], *, last: int, count: int) -> list[OutboxMessage]:
        """Return the oldest live rows of keys, due or not, up to the row ``last``: of each key without a gap.

        The first one of a key is its oldest live row at this moment.
        """
        binds = {"target": self._target, "keys": keys, "last": last, "count": count}
        return [_message(row) for row in session.fetch_all(self._statements.read_keys, binds)]

    def settle(
        self, session: DbSession, *, published: Sequence[int], refused: Iterable[tuple[RetryRow | Park, str]]
    ) -> None:
        """Delete published rows and record refusals."""
        if published:
            session.execute(self._statements.delete, {"seqs": json.dumps(published)})
        for decision, reason in refused:
            binds: dict[str, Any] = {"seq": decision.seq, "n": decision.attempts, "reason": reason.encode()[:255]}
            if isinstance(decision, RetryRow):
                later = self._dialect.interval(decision.delay_s)
                session.execute(self._statements.retry, {**binds, "later": later})
            else:
                session.execute(self._statements.park, binds)


def _message(row: dict[str, Any]) -> OutboxMessage:
    key, event = row["k"], row["event"]
    return OutboxMessage(
        row["seq"],
        bytes(row["id"]).decode(),
        None if key is None else bytes(key),
        bytes(row["payload"]),
        row["n"],
        max(0.0, float(row["age"]) / 1e6),
        bool(row.get("due", True)),
        None if event is None else bytes(event).decode(),
        int(row["created_ms"]),
        _headers(row["headers"]),
    )


def _headers(stored: Any) -> dict[str, str] | None:
    if stored is None:
        return None
    try:
        return read_headers(json.loads(bytes(stored)))
    except ValueError:
        return None


def own_engine(engine: Engine) -> Engine:
    """Return an engine with separate connections: same address and credentials, other session settings.

    Settings changed on the caller's connections would stay when these return to the caller's pool.
    """
    if not is_mysql(engine) and not is_postgres(engine):  # SQLite: a memory database lives in one connection
        return engine
    own = separate_engine(engine)
    if is_postgres(engine):

        @event.listens_for(own, "connect")
        def limit_idle_transactions(connection: Any, _: object) -> None:
            with connection.cursor() as cursor:
                cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_LIMIT_S}s'")
            connection.commit()

        # Set for each checkout, and without a round trip: the driver's BEGIN names the level.
        return own.execution_options(isolation_level="READ COMMITTED")

    @event.listens_for(own, "connect")
    def prepare(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute(f"SET SESSION wait_timeout = {IDLE_LIMIT_S}")

    return own
