"""The rows of an inbox table in one transaction: write, find, compare, forget. Used by ``Inbox`` and its handlers.

See docs/decisions/0024.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy.engine import Engine

from conquiet.core.log import FactLogger
from conquiet.db.errors import is_duplicate
from conquiet.errors import ConflictError, DbWriteError, LifecycleError, MessageInProgressError
from conquiet.metrics.registry import INBOX_MESSAGES_TOTAL
from conquiet.metrics.safety import count
from conquiet.transactional.effect_counts import count_single_effect, forget_effect
from conquiet.transactional.inbox_batch import InboxEntry, record_many
from conquiet.transactional.inbox_keys import InboxKey, KeyFunction, key_of
from conquiet.transactional.payload_digest import digest_of, is_same, key_of_other
from conquiet.transactional.schema import NO_COLUMN, if_missing
from conquiet.transactional.sql_dialect import SqlDialect
from conquiet.transactional.statements import InboxStatements, inbox_statements
from conquiet.transactional.unit_of_work import UnitOfWork

logger = FactLogger(__name__)

T = TypeVar("T")

# The rows that each open transaction has written, by table, by any inbox object, with their digests.
_written: "WeakKeyDictionary[object, dict[str, dict[InboxKey, bytes | None]]]" = WeakKeyDictionary()


class InboxRows:
    """Reads and writes the rows of one inbox table. Each method works in the caller's transaction.

    Args:
        table: The table.
        key: See ``Inbox``.
        compare: See ``compare_payload`` of ``Inbox``.
    """

    def __init__(self, table: str, key: KeyFunction | None, *, compare: bool | None) -> None:
        self.table = table
        self._key = key
        self._compare = compare
        # Engines with an inbox table of an earlier version, without digests.
        self._without_digest: WeakSet[Engine] = WeakSet()

    def entry_of(self, msg: Any) -> InboxEntry:
        """Return the key of a message and the digest to compare."""
        key = key_of(msg, self._key)
        return InboxEntry(key, digest_of(msg, key, compare=self._compare))

    def cancellation_key(self, msg: Any) -> InboxKey:
        """Return the key of the row that records that a message is cancelled; see ``cancelled_jobs``."""
        key, digest = self.entry_of(msg)
        # Hashed: the id may be as long as the column.
        return key._replace(id=f"cancelled:{sha256(key.id.encode() + (digest or b'')).hexdigest()}")

    def has_row(self, unit: UnitOfWork, key: InboxKey) -> bool:
        """Return whether there is a row with this key."""
        return self._find(unit, key) is not None

    def check(self, unit: UnitOfWork, msg: Any) -> bool:
        """Record the message in a transaction; see ``Inbox.once``."""
        return self.record(unit, *self.entry_of(msg))

    def check_many(self, unit: UnitOfWork, msgs: Sequence[Any]) -> list[bool]:
        """Record messages in a transaction; see ``Inbox.once_many``."""
        return record_many(self, unit, [self.entry_of(msg) for msg in msgs])

    def forget(self, unit: UnitOfWork, msgs: Sequence[Any]) -> None:
        """Delete the rows that this transaction has written for these messages, after their effect was rolled back."""
        written = _written.get(unit.transaction, {}).get(self.table, {})
        for msg in msgs:
            key, digest = self.entry_of(msg)
            is_free = self._delete_written(unit, written, key, digest)
            reused = digest is not None and self._delete_written(unit, written, key_of_other(key, digest), digest)
            if is_free or reused:
                forget_effect(unit, key.source, "reused_id" if reused else "first")
            if is_free and digest is not None:
                self._take_free_key(unit, written, key)

    def _delete_written(
        self, unit: UnitOfWork, written: dict[InboxKey, bytes | None], row: InboxKey, digest: bytes | None
    ) -> bool:
        # Another message of the transaction may have the same id, and have written the row of the plain id.
        if row not in written or not is_same(written[row], digest):
            return False
        del written[row]
        unit.execute(inbox_statements(unit.dialect, self.table).delete, _binds(unit, row))
        return True

    def _take_free_key(self, unit: UnitOfWork, written: dict[InboxKey, bytes | None], key: InboxKey) -> None:
        """Write the row of a plain id for another message of the transaction that has a row under "id#digest".

        While the plain id is free, a second delivery of that message would count as the first.
        """
        for row, digest in written.items():
            if digest is not None and "#" in row.id and row == key_of_other(key, digest):
                self.write(unit, key, digest)
                return

    def record(self, unit: UnitOfWork, key: InboxKey, digest: bytes | None) -> bool:
        """Record one message; see ``Inbox.record``."""
        existing = self.write(unit, key, digest)
        if existing is None:
            count_single_effect(unit, key.source, "first")
            return True
        if (
            digest is not None
            and not is_same(existing.digest, digest)
            and self.write(unit, key_of_other(key, digest), digest) is None
        ):
            self._touch(unit, key)
            count_single_effect(unit, key.source, "reused_id")
            logger.warning("id was used before by another message, handling this one too", **_facts(key))
            return True
        count_single_effect(unit, key.source, "duplicate")
        logger.info("message had its effect before, handler skipped", **_facts(key))
        return False

    def contains(self, unit: UnitOfWork, msg: Any) -> bool:
        """Return whether the effect of the message is in the database; see ``Inbox.contains``."""
        key, digest = self.entry_of(msg)
        found = self._find(unit, key)
        if found is None or digest is None or is_same(found.digest, digest):
            return found is not None
        return self._find(unit, key_of_other(key, digest)) is not None

    def write(self, unit: UnitOfWork, key: InboxKey, digest: bytes | None) -> "_Row | None":
        """Insert the row; return the existing one, None if there was none."""

        def insert(with_digest: bool) -> int:  # noqa: FBT001 - called by ``on_any_version``
            statements = self._statements(unit, digest=with_digest)
            binds = _binds(unit, key)
            if with_digest:
                binds["digest"] = unit.dialect.bind_binary(digest)
            return unit.insert(statements.insert, binds)

        try:
            inserted = self.on_any_version(unit, insert)
        except ConflictError as error:
            raise self.in_progress(error, key.source) from error.__cause__
        except DbWriteError as error:
            # A trigger of the user may raise 1062 too. Treating that as our duplicate would lose the message.
            existing = self._find(unit, key) if is_duplicate(error) else None
            if existing is None:
                raise if_missing(error, self.table) from error.__cause__
        else:
            # PostgreSQL reports a duplicate by the row count: an error would end the transaction.
            existing = None if inserted else self._require(unit, key)
        self.record_written(unit, {key: digest}, () if existing is None else (key,))
        return existing

    def record_written(
        self, unit: UnitOfWork, entries: Mapping[InboxKey, bytes | None], existing: Collection[InboxKey]
    ) -> None:
        """Record which rows the transaction has written: all of ``entries`` except the existing ones.

        Raises:
            LifecycleError: This transaction has written one of the existing rows.
        """
        written = _written.setdefault(unit.transaction, {}).setdefault(self.table, {})
        for key in existing:
            if key in written and is_same(written[key], entries[key]):
                # False would make a handler believe that its work is done, and commit the row without it.
                raise LifecycleError(
                    "this transaction has recorded the message in the inbox already: use once() in one place"
                )
        written.update(entries if not existing else {key: entries[key] for key in entries if key not in existing})

    def in_progress(self, error: ConflictError, source: str) -> MessageInProgressError:
        """Return the error for a conflict on an inbox row, counted."""
        count(INBOX_MESSAGES_TOTAL, source, "conflict")
        return MessageInProgressError(
            f"another run of the message holds its inbox row, and has not ended in time: {error}",
            table=self.table,
            operation=error.operation,
            errno=error.errno,
            sqlstate=error.sqlstate,
        )

    def _require(self, unit: UnitOfWork, key: InboxKey) -> "_Row":
        """Return the row that an INSERT found; raise if a purge has deleted it since: the next delivery decides."""
        found = self._find(unit, key)
        if found is None:
            raise self.row_vanished()
        return found

    def row_vanished(self) -> MessageInProgressError:
        """Return the error for a row that an INSERT has found and a SELECT has not."""
        return MessageInProgressError(
            "the inbox row of the message was deleted while it was read; the next delivery decides", table=self.table
        )

    def _touch(self, unit: UnitOfWork, key: InboxKey) -> None:
        """Refresh the older row of a reused id, so that both rows are purged together.

        If it were purged first, the newer message could run a second time, under the plain id.
        """
        unit.execute(inbox_statements(unit.dialect, self.table).touch, _binds(unit, key))

    def _find(self, unit: UnitOfWork, key: InboxKey) -> "_Row | None":
        found = self.on_any_version(
            unit, lambda digest: unit.fetch_one(self._statements(unit, digest=digest).find, _binds(unit, key))
        )
        return None if found is None else _Row(None if found["digest"] is None else bytes(found["digest"]))

    def _statements(self, unit: UnitOfWork, *, digest: bool) -> InboxStatements:
        return inbox_statements(unit.dialect, self.table, digest=digest)

    def on_any_version(self, unit: UnitOfWork, run: Callable[[bool], T]) -> T:
        """Call ``run(True)`` for a table with the column ``digest``, ``run(False)`` if an earlier version made it."""
        if unit.engine in self._without_digest:
            return run(False)  # noqa: FBT003 - a callback
        try:
            return run(True)  # noqa: FBT003 - the same
        except DbWriteError as error:
            if error.errno not in NO_COLUMN:
                raise
        try:
            result = run(False)  # noqa: FBT003 - the same
        except DbWriteError as error:
            if if_missing(error, self.table) is error:  # the table and its other columns are there
                self._record_missing_digest(unit.engine, unit.dialect)
            raise
        self._record_missing_digest(unit.engine, unit.dialect)
        return result

    def _record_missing_digest(self, engine: Engine, dialect: SqlDialect) -> None:
        if engine in self._without_digest:  # another thread was first
            return
        # An error would stop every worker of a deployment until an operator has changed the tables.
        self._without_digest.add(engine)
        logger.warning(
            "inbox table is of an earlier version, without the column digest: a message with a repeated entry id "
            "counts as a duplicate; run 'conquiet db migrate' or the statement, and restart",
            table=self.table,
            statement=dialect.add_digest(self.table),
        )


class _Row(NamedTuple):
    """The inbox row of a key."""

    digest: bytes | None


def _binds(unit: UnitOfWork, key: InboxKey) -> dict[str, bytes | str | None]:
    bind = unit.dialect.bind_binary
    return {"source": bind(key.source.encode()), "grp": bind(key.group.encode()), "id": bind(key.id.encode())}


def _facts(key: InboxKey) -> dict[str, str]:
    # Not the id: a business key may be personal data.
    return {"source": key.source, "group": key.group}
