"""The inbox: a row in the handler's transaction that records that the message has had its effect.

    INSERT key ──┬─ inserted ─────────▶ first time: the handler runs, its statements commit with the row
                 ├─ waits ────────────▶ another run of the message is in progress; its end decides:
                 │                        committed: a duplicate          rolled back or died: inserted
                 ├─ duplicate ────────▶ same digest, or none: the effect is committed, skip the handler, acknowledge
                 │                        another digest: another message had this id; INSERT under "id#digest"
                 └─ conflict ─────────▶ waited too long, or two waited: MessageInProgressError, it stays pending

The row is written *before* the handler's statements. Written after them, two runs of one message
would both do their work and only then find the duplicate.

See docs/decisions/0024.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy.engine import Engine

from conquiet.core.functions import require_plain_function
from conquiet.core.log import FactLogger
from conquiet.core.validation import require_table
from conquiet.db.errors import is_duplicate
from conquiet.errors import ConfigurationError, ConflictError, DbWriteError, LifecycleError, MessageInProgressError
from conquiet.metrics.registry import INBOX_MESSAGES_TOTAL
from conquiet.metrics.safety import count
from conquiet.transactional.effect_counts import count_single_effect
from conquiet.transactional.inbox_batch import InboxEntry, record_many
from conquiet.transactional.inbox_keys import InboxKey, KeyFunction, key_of
from conquiet.transactional.payload_digest import digest_of, is_same, key_of_other
from conquiet.transactional.purging import delete_old_rows
from conquiet.transactional.schema import INBOX_TABLE, NO_COLUMN, if_missing
from conquiet.transactional.sql_dialect import SqlDialect, dialect_named
from conquiet.transactional.statements import InboxStatements, inbox_statements
from conquiet.transactional.unit_of_work import SyncSession, UnitOfWork, run_in, unit_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

logger = FactLogger(__name__)

T = TypeVar("T")

_ABSENT = object()

# The rows that each open transaction has written, by table, by any inbox object, with their digests.
_written: "WeakKeyDictionary[object, dict[str, dict[InboxKey, bytes | None]]]" = WeakKeyDictionary()


class Inbox:
    """Records which messages have had their effect in this database.

    Holds no connection and may be shared by threads and tasks.

    Args:
        table: The table, as made by ``create_tables``.
        key: Chooses the key of a message, if not (stream, group, entry id): see ``key_of``. Return a
            business key where the same message can arrive under several ids.
        compare_payload: Whether a digest of the payload is stored and compared when a key exists: the same
            key with another payload is then another message. None compares where the key is the id that Redis
            assigned to the entry, because such an id can repeat (see ``payload_digest``), and trusts every other key.
    """

    def __init__(
        self, table: str = INBOX_TABLE, *, key: KeyFunction | None = None, compare_payload: bool | None = None
    ) -> None:
        self.table = require_table("table", table)
        if key is not None:
            require_plain_function("key", key)
        if compare_payload not in {None, True, False}:
            raise ConfigurationError("compare_payload must be True, False or None")
        self._key = key
        self._compare = compare_payload
        # Engines with an inbox table of an earlier version, without digests.
        self._without_digest: WeakSet[Engine] = WeakSet()

    def once(self, session: "SyncSession | AsyncSession | AsyncConnection", msg: Any) -> "InboxCheck[bool]":
        """Record the message in the session's transaction; True the first time. Use it before other statements.

        >>> with DbSession(engine) as session, inbox.once(session, msg) as first_time:  # doctest: +SKIP
        ...     if first_time:
        ...         session.execute("UPDATE …")

        With an ``AsyncSession`` or ``AsyncConnection`` write ``async with``. False means that the effect is in the
        database, committed. Do nothing, and acknowledge. The owner of the session commits.

        Raises:
            MessageInProgressError: Another run of the message did not end in time, or two runs waited for it. Nothing
                was written; leave the message pending. It is a ``ConflictError``.
            MessageKeyError: The message has no usable key.
            LifecycleError: The same transaction has recorded the message before.
        """
        return InboxCheck(session, lambda unit: self.check(unit, msg))

    def once_many(
        self, session: "SyncSession | AsyncSession | AsyncConnection", msgs: Sequence[Any]
    ) -> "InboxCheck[list[bool]]":
        """Record many messages in the session's transaction: one statement, if none of them was recorded before.

        >>> with DbSession(engine) as session, inbox.once_many(session, msgs) as first_time:  # doctest: +SKIP
        ...     new = [msg for msg, is_first in zip(msgs, first_time) if is_first]

        Yields a list with True for each new message, in the order of ``msgs``. The effect of the others is in the
        database, or the same message is twice in ``msgs``. Use it before other statements;
        with an asynchronous session write ``async with``. The owner of the session commits.

        Raises:
            MessageInProgressError: Another run of one of the messages did not end in time. Nothing was written.
            MessageKeyError: A message has no usable key.
            LifecycleError: The same transaction has recorded one of the messages before.
        """
        return InboxCheck(session, lambda unit: self.check_many(unit, msgs))

    def record(self, session: SyncSession, key: InboxKey, *, digest: bytes | None = None) -> bool:
        """Write the row of ``key`` into the session's transaction. False if it exists. One round trip if not.

        Args:
            session: The transaction.
            key: Identifies the message.
            digest: Of its payload, if another message may have the same key later; see ``payload_digest``.
        """
        return self.record_entry(unit_of(session), key, digest)

    async def record_async(
        self, session: "AsyncSession | AsyncConnection", key: InboxKey, *, digest: bytes | None = None
    ) -> bool:
        """Do what ``record`` does, in an asynchronous session."""
        return await run_in(session, lambda unit: self.record_entry(unit, key, digest))

    def contains(self, session: SyncSession, msg: Any) -> bool:
        """Return whether the effect of the message is in the database, without recording it."""
        return self._contains(unit_of(session), msg)

    async def contains_async(self, session: "AsyncSession | AsyncConnection", msg: Any) -> bool:
        """Do what ``contains`` does, in an asynchronous session."""
        return await run_in(session, lambda unit: self._contains(unit, msg))

    def purge(self, engine: Engine, *, older_than_s: float, batch: int = 1_000, max_batches: int | None = None) -> int:
        """Delete rows older than ``older_than_s`` and return how many. Safe during inserts; many short transactions.

        A row may be deleted once its message cannot be delivered again: see docs/exactly-once.md.
        A message that is delivered again after that has its effect a second time.

        Args:
            engine: The database of the table.
            older_than_s: By the database's clock.
            batch: Rows per transaction.
            max_batches: Maximum number of transactions; None has no limit.
        """
        statement = dialect_named(engine.dialect.name).inbox_purge(self.table)
        return delete_old_rows(engine, statement, older_than_s=older_than_s, batch=batch, max_batches=max_batches)

    def cancellation_key(self, msg: Any) -> InboxKey:
        """Return the key of the row that records that a message is cancelled; see ``cancelled_jobs``."""
        key, digest = self._entry(msg)
        # Hashed: the id may be as long as the column.
        return key._replace(id=f"cancelled:{sha256(key.id.encode() + (digest or b'')).hexdigest()}")

    # ------------------------------------------------------------------ one transaction
    def has_row(self, unit: UnitOfWork, key: InboxKey) -> bool:
        """Return whether there is a row with this key."""
        return self._find(unit, key) is not None

    def check(self, unit: UnitOfWork, msg: Any) -> bool:
        """Record the message in a transaction; see ``once``."""
        return self.record_entry(unit, *self._entry(msg))

    def check_many(self, unit: UnitOfWork, msgs: Sequence[Any]) -> list[bool]:
        """Record messages in a transaction; see ``once_many``."""
        return record_many(self, unit, [self._entry(msg) for msg in msgs])

    def _entry(self, msg: Any) -> InboxEntry:
        key = key_of(msg, self._key)
        return InboxEntry(key, digest_of(msg, key, compare=self._compare))

    def forget(self, session: SyncSession, msgs: Sequence[Any]) -> None:
        """Delete the rows that this transaction has written for these messages, after their effect was rolled back."""
        self.forget_in(unit_of(session), msgs)

    def forget_in(self, unit: UnitOfWork, msgs: Sequence[Any]) -> None:
        """Do what ``forget`` does."""
        written = _written.get(unit.transaction, {}).get(self.table, {})
        for msg in msgs:
            key, digest = self._entry(msg)
            others = () if digest is None else (key_of_other(key, digest),)
            for row in (key, *others):
                if written.pop(row, _ABSENT) is not _ABSENT:
                    unit.execute(inbox_statements(unit.dialect, self.table).delete, _binds(unit, row))

    def record_entry(self, unit: UnitOfWork, key: InboxKey, digest: bytes | None) -> bool:
        """Record one message; see ``record``."""
        existing = self.write_entry(unit, key, digest)
        if existing is None:
            count_single_effect(unit, key.source, "first")
            return True
        if (
            digest is not None
            and not is_same(existing.digest, digest)
            and self.write_entry(unit, key_of_other(key, digest), digest) is None
        ):
            self._touch(unit, key)
            count_single_effect(unit, key.source, "reused_id")
            logger.warning("id was used before by another message, handling this one too", **_facts(key))
            return True
        count_single_effect(unit, key.source, "duplicate")
        logger.info("message had its effect before, handler skipped", **_facts(key))
        return False

    def _contains(self, unit: UnitOfWork, msg: Any) -> bool:
        key, digest = self._entry(msg)
        found = self._find(unit, key)
        if found is None or digest is None or is_same(found.digest, digest):
            return found is not None
        return self._find(unit, key_of_other(key, digest)) is not None

    def write_entry(self, unit: UnitOfWork, key: InboxKey, digest: bytes | None) -> "_Row | None":
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


class InboxCheck(Generic[T]):
    """Returned by ``once`` and ``once_many``: ``with`` for a synchronous session, ``async with`` for an async one."""

    __slots__ = ("_check", "_session")

    def __init__(self, session: Any, check: Callable[[UnitOfWork], T]) -> None:
        self._session = session
        self._check = check

    def __enter__(self) -> T:
        """Record the message or the messages; True the first time."""
        return self._check(unit_of(self._session))

    def __exit__(self, *_: object) -> None:
        """Do nothing: the row shares the end of the transaction."""

    async def __aenter__(self) -> T:
        """Record the message or the messages; True the first time."""
        return await run_in(self._session, self._check)

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: the row shares the end of the transaction."""


class _Row(NamedTuple):
    """The inbox row of a key."""

    digest: bytes | None


def _binds(unit: UnitOfWork, key: InboxKey) -> dict[str, bytes | str | None]:
    bind = unit.dialect.bind_binary
    return {"source": bind(key.source.encode()), "grp": bind(key.group.encode()), "id": bind(key.id.encode())}


def _facts(key: InboxKey) -> dict[str, str]:
    # Not the id: a business key may be personal data.
    return {"source": key.source, "group": key.group}
