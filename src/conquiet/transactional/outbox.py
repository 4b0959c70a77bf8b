"""The outbox: messages written in the transaction that causes them, published afterwards by a relay.

    business transaction:  your rows + outbox row ──COMMIT──▶ both or none
    relay:                 lock the row, publish, delete it ──COMMIT──▶ published at least once

A message that a handler publishes directly can be sent although its transaction rolls back, or
lost although it commits. A row cannot.

One statement writes all rows. See docs/decisions/0024 and 0025.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from sqlalchemy.engine import Engine

from conquiet.core import causation, tracing
from conquiet.core.chunks import chunks
from conquiet.core.redaction import printable
from conquiet.core.validation import require_positive, require_seconds, require_table, require_text
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, DbWriteError
from conquiet.transactional.batch_sql import bind_messages, outbox_insert_many
from conquiet.transactional.inbox_keys import MAX_PART_BYTES
from conquiet.transactional.payload import MAX_PAYLOAD_BYTES, encode
from conquiet.transactional.purging import PURGE_BATCH, delete_old_rows
from conquiet.transactional.schema import OUTBOX_TABLE, if_missing
from conquiet.transactional.sql_dialect import dialect_named
from conquiet.transactional.statements import OutboxStatements, outbox_statements
from conquiet.transactional.unit_of_work import SyncSession, UnitOfWork, run_in, unit_of
from conquiet.transactional.unserved_targets import overdue_targets

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

_MAX_ROWS: Final = 1_000
_MAX_BYTES: Final = 1_000_000
"""Payload bytes of one statement; in hexadecimal twice as many, below MySQL's smallest ``max_allowed_packet``."""

_Row = tuple[bytes, bytes | None, bytes]
"""Message id, order key, payload."""


@dataclass(frozen=True, slots=True)
class ParkedMessage:
    """A row that its target refused too often. The payload is not shown.

    Attributes:
        seq: Names it to ``Outbox.unpark``.
        message_id: The id it would be published with.
        target: Its target.
        attempts: How often it was refused.
        reason: Why, the last time.
        age_s: Time since it was written.
    """

    seq: int
    message_id: str
    target: str
    attempts: int
    reason: str
    age_s: float


@dataclass(frozen=True, slots=True)
class OutboxBacklog:
    """The rows of one target.

    Attributes:
        waiting: Rows to publish, delayed ones included.
        parked: Rows that were refused too often.
        oldest_age_s: Age of the oldest row that is not parked; 0 if there is none.
    """

    waiting: int
    parked: int
    oldest_age_s: float


class Outbox:
    """Takes messages inside a transaction. Holds no connection and may be shared by threads and tasks.

    Args:
        table: The table, as made by ``create_tables``.
        max_payload_bytes: Largest payload, encoded.
        targets: Names of all targets there are. With them, ``add`` refuses any other name, and so does an
            ``OutboxRelay`` of this outbox. Without them a name that no relay serves is accepted, and its rows wait.
        wake: On PostgreSQL, notify the relays at COMMIT, so that they need not wait for their next poll. PostgreSQL
            lets one notifying transaction commit at a time; where thousands commit in a second, switch it off.
    """

    def __init__(
        self,
        table: str = OUTBOX_TABLE,
        *,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        targets: Iterable[str] | None = None,
        wake: bool = True,
    ) -> None:
        self._wake = wake
        self.table = require_table("table", table)
        self._max_bytes = require_positive("max_payload_bytes", max_payload_bytes)
        if isinstance(targets, str):
            raise ConfigurationError("targets must be a list of names, not one string")
        self._targets = None if targets is None else frozenset(require_text("a target's name", one) for one in targets)

    def add(
        self,
        session: SyncSession,
        target: str,
        payload: Mapping[str, Any],
        key: str | None = None,
        *,
        event: str | None = None,
        delay_s: float | None = None,
        headers: tracing.Headers | None = None,
    ) -> str:
        """Write a message into the session's transaction and return the id it will be published with.

        The owner of the session commits. An asynchronous session takes ``add_async``.

        Args:
            session: The transaction it belongs to: a ``DbSession``, a sqlalchemy ``Session`` or ``Connection``.
            target: Name of the target, as the relay knows it.
            payload: A JSON object.
            key: Messages to one target with one key are published in the order in which they were written. Let
                the transactions that write them exclude each other (they usually lock the row that the key
                names): between transactions that run at the same time there is no order to keep.
            event: For a target that carries several events: which handlers of a ``Processor`` are meant. RabbitMQ
                gets it as the property ``type``, a stream as the field ``_event``.
            delay_s: Seconds to wait before it is published. Later messages of the same key wait too.
            headers: Names and texts that travel with the message: in the envelope of a ``Processor``, in AMQP
                headers. The current trace context is added if tracing is on.

        Raises:
            PayloadError: The payload cannot be a message.
            ConfigurationError: An argument is wrong, or the target was not declared.
        """
        return self._rows(target, [payload], [key], event, delay_s, headers).write(unit_of(session))[0]

    async def add_async(
        self,
        session: "AsyncSession | AsyncConnection",
        target: str,
        payload: Mapping[str, Any],
        key: str | None = None,
        *,
        event: str | None = None,
        delay_s: float | None = None,
        headers: tracing.Headers | None = None,
    ) -> str:
        """Do what ``add`` does, in the transaction of an ``AsyncSession`` or ``AsyncConnection``."""
        return (await run_in(session, self._rows(target, [payload], [key], event, delay_s, headers).write))[0]

    def add_many(
        self,
        session: SyncSession,
        target: str,
        payloads: Iterable[Mapping[str, Any]],
        keys: Sequence[str | None] | None = None,
        *,
        event: str | None = None,
        delay_s: float | None = None,
        headers: tracing.Headers | None = None,
    ) -> list[str]:
        """Write many messages into the session's transaction by one statement; return their ids, in their order.

        Args:
            session: See ``add``.
            target: See ``add``.
            payloads: A JSON object for each message. If one cannot be encoded, none is added.
            keys: The order key of each message; none has one if left out.
            event: See ``add``; of all.
            delay_s: See ``add``; of all.
            headers: See ``add``; of all.
        """
        return self._rows(target, payloads, keys, event, delay_s, headers).write(unit_of(session))

    async def add_many_async(
        self,
        session: "AsyncSession | AsyncConnection",
        target: str,
        payloads: Iterable[Mapping[str, Any]],
        keys: Sequence[str | None] | None = None,
        *,
        event: str | None = None,
        delay_s: float | None = None,
        headers: tracing.Headers | None = None,
    ) -> list[str]:
        """Do what ``add_many`` does, in the transaction of an ``AsyncSession`` or ``AsyncConnection``."""
        return await run_in(session, self._rows(target, payloads, keys, event, delay_s, headers).write)

    def _rows(
        self,
        target: str,
        payloads: Iterable[Mapping[str, Any]],
        keys: Sequence[str | None] | None,
        event: str | None,
        delay_s: float | None,
        headers: tracing.Headers | None,
    ) -> "OutboxRows":
        """Check messages and return the rows to write."""
        self.require_target(target)
        if isinstance(keys, str):
            raise ConfigurationError("keys must be a list with one key for each payload, not one string")
        payloads = list(payloads)
        if keys is not None and len(keys) != len(payloads):
            raise ConfigurationError(f"there are {len(payloads)} payloads and {len(keys)} keys: give one key for each")
        rows = [
            (
                # No id that the caller could choose or guess: the receiver's inbox would treat it as a duplicate.
                uuid4().hex.encode(),
                None if key is None else _short("key", key),
                encode(payload, max_bytes=self._max_bytes),
            )
            for payload, key in zip(payloads, keys or [None] * len(payloads), strict=True)
        ]
        wait_s = 0.0 if delay_s is None else require_seconds("delay_s", delay_s, zero_allowed=True)
        named = None if event is None else _short("event", event)
        carried = _encoded_headers(headers, target, *(row[0].decode() for row in rows))
        # A message that is not due yet wakes no relay: polling finds it in time.
        return OutboxRows(self.table, _short("target", target), named, wait_s, rows, self._wake and not wait_s, carried)

    def require_target(self, target: str) -> None:
        """Raise ``ConfigurationError`` for a target that was not declared."""
        if self._targets is not None and target not in self._targets:
            raise ConfigurationError(
                f"there is no target {printable(str(target))!r} in the outbox {self.table}; declared are: "
                f"{', '.join(map(printable, sorted(self._targets)))}"
            )

    # ------------------------------------------------------------------ for operators
    def backlog(self, engine: Engine) -> dict[str, OutboxBacklog]:
        """Return the backlog by target. Reads an index of the whole table: for operators, not for every second."""
        with self._session(engine) as (session, statements):
            rows = session.fetch_all(statements.backlog)
        return {
            bytes(row["target"]).decode(): OutboxBacklog(
                int(row["waiting"]), int(row["parked"]), max(0.0, int(row["age"]) / 1e6)
            )
            for row in rows
        }

    def overdue(self, engine: Engine) -> dict[str, float]:
        """Return the targets with rows that have been due for a minute, with the age of the oldest row in seconds.

        No relay serves such a target (its name may be a typo), or its relay is behind. Cheap: reads by index.
        """
        with DbSession(engine) as session:
            return overdue_targets(session, self.table, dialect_named(engine.dialect.name))

    def parked(self, engine: Engine, *, limit: int = 100, after: int = 0) -> list[ParkedMessage]:
        """Return parked rows, the oldest first; ``after`` is the ``seq`` of the last row of the page before."""
        binds = {"limit": require_positive("limit", limit), "after": after}
        with self._session(engine) as (session, statements):
            rows = session.fetch_all(statements.list_parked, binds)
        return [
            ParkedMessage(
                row["seq"],
                bytes(row["message_id"]).decode(),
                bytes(row["target"]).decode(),
                row["attempts"],
                bytes(row["reason"] or b"").decode(errors="replace"),
                float(row["age"]) / 1e6,
            )
            for row in rows
        ]

    def unpark(self, engine: Engine, seq: int) -> bool:
        """Make a parked row due again, with all its attempts. False if there is no such row."""
        with self._session(engine) as (session, statements):
            return session.execute(statements.unpark, {"seq": seq}) > 0

    def purge(
        self, engine: Engine, *, older_than_s: float, batch: int = PURGE_BATCH, max_batches: int | None = None
    ) -> int:
        """Delete *parked* rows older than ``older_than_s`` and return how many. The relay deletes published rows.

        Args:
            engine: The database of the table.
            older_than_s: By the database's clock.
            batch: Rows per transaction.
            max_batches: Maximum number of transactions; None has no limit.
        """
        statement = dialect_named(engine.dialect.name).outbox_purge(self.table)
        return delete_old_rows(engine, statement, older_than_s=older_than_s, batch=batch, max_batches=max_batches)

    @contextmanager
    def _session(self, engine: Engine) -> Iterator[tuple[DbSession, OutboxStatements]]:
        """Open a session; its errors name the remedy for a missing table."""
        try:
            with DbSession(engine) as session:
                yield session, outbox_statements(dialect_named(engine.dialect.name), self.table)
        except DbWriteError as error:
            raise if_missing(error, self.table) from error.__cause__


@dataclass(frozen=True, slots=True)
class OutboxRows:
    """Rows of one target, event and delay: written by one statement, up to a size that servers accept."""

    table: str
    target: bytes
    event: bytes | None
    delay_s: float
    rows: Sequence[_Row]
    wake: bool
    headers: bytes | None

    def write(self, unit: UnitOfWork) -> list[str]:
        """Write them into a transaction, in their order; return their ids."""
        statement = outbox_insert_many(unit.dialect, self.table, wake=self.wake)
        try:
            for rows in chunks(self.rows, lambda row: len(row[2]), max_items=_MAX_ROWS, max_size=_MAX_BYTES):
                if statement is None or len(rows) == 1:
                    self._write_each(unit, rows)
                else:
                    unit.execute(statement, {**self._shared(unit), **bind_messages(unit.dialect, rows)})
        except DbWriteError as error:
            raise if_missing(error, self.table) from error.__cause__
        return self.ids

    @property
    def ids(self) -> list[str]:
        """Their ids, in their order."""
        return [row[0].decode() for row in self.rows]

    def _write_each(self, unit: UnitOfWork, rows: Sequence[_Row]) -> None:
        statements, bind = outbox_statements(unit.dialect, self.table), unit.dialect.bind_binary
        statement = statements.insert_and_wake if self.wake else statements.insert
        for message_id, key, payload in rows:
            own = {"id": bind(message_id), "key": bind(key), "payload": bind(payload), "free": int(key is None)}
            unit.execute(statement, {**self._shared(unit), **own})

    def _shared(self, unit: UnitOfWork) -> dict[str, Any]:
        bind = unit.dialect.bind_binary
        return {
            "target": bind(self.target),
            "event": bind(self.event),
            "headers": bind(self.headers),
            "later": unit.dialect.interval(self.delay_s),
        }


def _encoded_headers(headers: tracing.Headers | None, target: str, *message_ids: str) -> bytes | None:
    """Return the headers of messages: the caller's, the trace context, and the message that causes them."""
    given = causation.carried(tracing.require_headers(headers), target, *message_ids)
    carried = tracing.inject(given)
    return None if not carried else json.dumps(carried).encode()


def _short(name: str, value: str) -> bytes:
    data = require_text(name, value).encode()
    if len(data) > MAX_PART_BYTES:
        # A server that is not in strict mode would cut it, and the message would go elsewhere or nowhere.
        raise ConfigurationError(f"{name} must have at most {MAX_PART_BYTES} bytes in UTF-8, got {len(data)}")
    return data
