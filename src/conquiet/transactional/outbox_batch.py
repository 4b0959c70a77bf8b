"""Write many messages into an outbox: one statement for any number, up to a size that servers accept.

See docs/decisions/0024.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from conquiet.errors import DbWriteError
from conquiet.transactional.batch_sql import bind_messages, outbox_insert_many
from conquiet.transactional.schema import if_missing
from conquiet.transactional.sql_dialect import outbox_statements
from conquiet.transactional.unit_of_work import UnitOfWork

_MAX_BYTES: Final = 1_000_000
"""Payload bytes of one statement; in hexadecimal twice as many, below MySQL's smallest ``max_allowed_packet``."""
_MAX_ROWS: Final = 1_000

Row = tuple[bytes, bytes | None, bytes]
"""Message id, order key, payload."""


@dataclass(frozen=True, slots=True)
class OutboxRows:
    """Messages of one target, event and delay."""

    table: str
    target: bytes
    event: bytes | None
    delay_s: float
    rows: Sequence[Row]
    wake: bool
    headers: bytes | None

    def write(self, unit: UnitOfWork) -> list[str]:
        """Write them into a transaction, in their order; return their ids."""
        wake = self.wake and not self.delay_s  # a message that is not due yet wakes no relay
        statement = outbox_insert_many(unit.dialect, self.table, wake=wake)
        try:
            for rows in _chunks(self.rows):
                if statement is None or len(rows) == 1:
                    self._write_each(unit, rows, wake=wake)
                else:
                    unit.execute(statement, {**self._shared(unit), **bind_messages(unit.dialect, rows)})
        except DbWriteError as error:
            raise if_missing(error, self.table) from error.__cause__
        return [row[0].decode() for row in self.rows]

    def _write_each(self, unit: UnitOfWork, rows: Sequence[Row], *, wake: bool) -> None:
        statements, bind = outbox_statements(unit.dialect, self.table), unit.dialect.bind_binary
        statement = statements.insert_and_wake if wake else statements.insert
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


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    chunk: list[Row] = []
    size = 0
    for row in rows:
        if chunk and (len(chunk) == _MAX_ROWS or size + len(row[2]) > _MAX_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += len(row[2])
    if chunk:
        yield chunk
