"""The outbox: messages written in the transaction that causes them, published afterwards by a relay.

    business transaction:  your rows + outbox row ──COMMIT──▶ both or none
    relay:                 lock the row, publish, delete it ──COMMIT──▶ published at least once

A message that is published straight from a handler can be out while its transaction rolls back, or
lost while it commits. A row cannot.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import text
from sqlalchemy.engine import Engine

from conquiet.bridge.keys import MAX_PART_BYTES
from conquiet.bridge.payload import MAX_PAYLOAD_BYTES, encode
from conquiet.bridge.schema import OUTBOX_TABLE, if_missing
from conquiet.bridge.words import words_for
from conquiet.db.dialects import is_mysql
from conquiet.db.session import DbSession
from conquiet.db.sql import quoted
from conquiet.errors import ConfigurationError, DbWriteError
from conquiet.kernel.validation import require_positive, require_seconds, require_table, require_text

_SHOWN: Final = 1_000


@dataclass(frozen=True, slots=True)
class ParkedLetter:
    """A row that its target refused too often. The payload is not shown.

    Attributes:
        seq: Names it to ``Outbox.unpark``.
        message_id: The id it would be published with.
        target: Where it was to go.
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
    """What waits for one target.

    Attributes:
        waiting: Rows to publish, delayed ones included.
        parked: Rows given up.
        oldest_age_s: Age of the oldest row that is not parked; 0 if there is none.
    """

    waiting: int
    parked: int
    oldest_age_s: float


class Outbox:
    """Takes messages inside a transaction. Holds no connection and may be shared by threads.

    Args:
        table: Where, as made by ``create_tables``.
        max_payload_bytes: Largest payload, encoded.
    """

    def __init__(self, table: str = OUTBOX_TABLE, *, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self.table = require_table("table", table)
        self._max_bytes = require_positive("max_payload_bytes", max_payload_bytes)
        self._insert = {mysql: _insert(quoted(table), mysql=mysql) for mysql in (True, False)}

    def add(
        self,
        session: DbSession,
        target: str,
        payload: Mapping[str, Any],
        key: str | None = None,
        delay: float | None = None,
    ) -> str:
        """Write a message into the session's transaction and return the id it will be published with.

        Args:
            session: The transaction it belongs to.
            target: Name of the target, as the relay knows it.
            payload: A JSON object.
            key: Messages to one target with one key are published in the order in which they were written. Let
                the transactions that write them exclude each other (they usually lock the row that the key
                names): between transactions that run at the same time there is no order to keep.
            delay: Seconds to wait before it is published. What follows it under the same key waits too.

        Raises:
            PayloadError: The payload cannot be a message.
        """
        if not isinstance(session, DbSession):
            raise ConfigurationError("session must be the DbSession of the transaction that causes the message")
        mysql = is_mysql(session.engine)
        message_id = uuid4().hex
        # No id that the caller could choose or guess: it would be taken for a duplicate at the other side.
        binds = {
            "id": message_id.encode(),
            "target": _short("target", target),
            "key": None if key is None else _short("key", key),
            "free": int(key is None),
            "payload": encode(payload, max_bytes=self._max_bytes),
            "later": words_for(mysql=mysql).microseconds(
                0.0 if delay is None else require_seconds("delay", delay, zero_allowed=True)
            ),
        }
        try:
            session.execute(self._insert[mysql], binds)
        except DbWriteError as error:
            raise if_missing(error, self.table) from error.__cause__
        return message_id

    # ------------------------------------------------------------------ for operators
    def backlog(self, engine: Engine) -> dict[str, OutboxBacklog]:
        """Return what waits, by target. Reads an index of the whole table: for operators, not for every second."""
        statement = (
            f"SELECT `target`, SUM(1 - `parked`) AS waiting, SUM(`parked`) AS parked, "  # noqa: S608 - a checked name
            f"MAX(CASE WHEN `parked` = 0 THEN {words_for(mysql=is_mysql(engine)).age_us} ELSE 0 END) AS age "
            f"FROM {quoted(self.table)} GROUP BY `target`"
        )
        with DbSession(engine) as session:
            rows = session.fetch_all(statement)
        return {
            bytes(row["target"]).decode(): OutboxBacklog(
                int(row["waiting"]), int(row["parked"]), max(0.0, int(row["age"]) / 1e6)
            )
            for row in rows
        }

    def parked(self, engine: Engine, *, limit: int = _SHOWN) -> list[ParkedLetter]:
        """Return rows that were given up, the oldest first."""
        statement = (
            "SELECT `seq`, `message_id`, `target`, `attempts`, `reason`, "  # noqa: S608
            f"{words_for(mysql=is_mysql(engine)).age_us} AS age "
            f"FROM {quoted(self.table)} WHERE `parked` = 1 ORDER BY `seq` LIMIT :limit"
        )
        with DbSession(engine) as session:
            rows = session.fetch_all(statement, {"limit": require_positive("limit", limit)})
        return [
            ParkedLetter(
                row["seq"],
                bytes(row["message_id"]).decode(),
                bytes(row["target"]).decode(),
                row["attempts"],
                bytes(row["reason"] or b"").decode(errors="replace"),
                row["age"] / 1e6,
            )
            for row in rows
        ]

    def unpark(self, engine: Engine, seq: int) -> bool:
        """Let the relay try a parked row again, with all its attempts. False if there is no such row."""
        words = words_for(mysql=is_mysql(engine))
        with DbSession(engine) as session:
            return (
                session.execute(
                    f"UPDATE {quoted(self.table)} SET `parked` = 0, `attempts` = 0, `due_at` = {words.now} "  # noqa: S608
                    "WHERE `seq` = :seq AND `parked` = 1",
                    {"seq": seq},
                )
                > 0
            )

    def purge(self, engine: Engine, *, older_than_s: float, batch: int = 1_000) -> int:
        """Delete *parked* rows older than that and return how many. What is published is deleted at once anyway."""
        require_seconds("older_than_s", older_than_s)
        require_positive("batch", batch)
        words = words_for(mysql=is_mysql(engine))
        statement = text(words.delete_oldest(quoted(self.table), "seq", f"`parked` = 1 AND `created_at` < {words.ago}"))
        deleted = 0
        while True:
            with DbSession(engine) as session:
                words.read_committed(session)
                found = session.execute(statement, {"ago": words.microseconds(older_than_s), "batch": batch})
            deleted += found
            if found < batch:
                return deleted


def _insert(table: str, *, mysql: bool) -> Any:
    words = words_for(mysql=mysql)
    return text(
        f"INSERT INTO {table} (`message_id`, `target`, `order_key`, `free`, `payload`, `created_at`, `due_at`) "  # noqa: S608
        f"VALUES (:id, :target, :key, :free, :payload, {words.now}, {words.later})"
    )


def _short(name: str, value: str) -> bytes:
    data = require_text(name, value).encode()
    if len(data) > MAX_PART_BYTES:
        # A server that is not in strict mode would cut it, and the message would go elsewhere or nowhere.
        raise ConfigurationError(f"{name} must have at most {MAX_PART_BYTES} bytes in UTF-8, got {len(data)}")
    return data
