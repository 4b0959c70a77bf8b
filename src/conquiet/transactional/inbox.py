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

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqlalchemy.engine import Engine

from conquiet.core.functions import require_plain_function
from conquiet.core.validation import require_table
from conquiet.errors import ConfigurationError, LifecycleError
from conquiet.transactional.inbox_keys import InboxKey, KeyFunction, require_key
from conquiet.transactional.inbox_rows import InboxRows
from conquiet.transactional.purging import PURGE_BATCH, delete_old_rows
from conquiet.transactional.schema import INBOX_TABLE
from conquiet.transactional.sql_dialect import dialect_named
from conquiet.transactional.unit_of_work import SyncSession, UnitOfWork, run_in, unit_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

T = TypeVar("T")


class Inbox:
    """Records which messages have had their effect in this database.

    Holds no connection and may be shared by threads and tasks.

    Args:
        table: Name of the table, as made by ``create_tables``: ``table`` or ``schema.table``.
        key: Chooses the key of a message, if not (stream, group, entry id): see ``key_of``. Return a
            business key where the same message can arrive under several ids.
        compare_payload: Whether a digest of the payload is stored and compared when a key exists: the same
            key with another payload is then another message. None compares where the key is the id that Redis
            assigned to the entry, because such an id can repeat (see ``payload_digest``), and trusts every other key.

    Attributes:
        rows: The rows of the table in one transaction, for conquiet's handlers.
    """

    def __init__(
        self, table: str = INBOX_TABLE, *, key: KeyFunction | None = None, compare_payload: bool | None = None
    ) -> None:
        self.table = require_table("table", table)
        if key is not None:
            require_plain_function("key", key)
        if compare_payload not in {None, True, False}:
            raise ConfigurationError("compare_payload must be True, False or None")
        self.rows = InboxRows(table, key, compare=compare_payload)

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
        return InboxCheck(session, lambda unit: self.rows.check(unit, msg))

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
        return InboxCheck(session, lambda unit: self.rows.check_many(unit, msgs))

    def record(self, session: SyncSession, key: InboxKey, *, digest: bytes | None = None) -> bool:
        """Write the row of ``key`` into the session's transaction. False if it exists. One round trip if not.

        Args:
            session: The transaction.
            key: Identifies the message.
            digest: Of its payload, if another message may have the same key later; see ``payload_digest``.

        Raises:
            MessageKeyError: The key cannot be stored.
        """
        return self.rows.record(unit_of(session), require_key(key), digest)

    async def record_async(
        self, session: "AsyncSession | AsyncConnection", key: InboxKey, *, digest: bytes | None = None
    ) -> bool:
        """Do what ``record`` does, in an asynchronous session."""
        return await run_in(session, lambda unit: self.rows.record(unit, require_key(key), digest))

    def contains(self, session: SyncSession, msg: Any) -> bool:
        """Return whether the effect of the message is in the database, without recording it."""
        return self.rows.contains(unit_of(session), msg)

    async def contains_async(self, session: "AsyncSession | AsyncConnection", msg: Any) -> bool:
        """Do what ``contains`` does, in an asynchronous session."""
        return await run_in(session, lambda unit: self.rows.contains(unit, msg))

    def purge(
        self, engine: Engine, *, older_than_s: float, batch: int = PURGE_BATCH, max_batches: int | None = None
    ) -> int:
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


class InboxCheck(Generic[T]):
    """Returned by ``once`` and ``once_many``: ``with`` for a synchronous session, ``async with`` for an async one."""

    __slots__ = ("_check", "_session")

    def __init__(self, session: Any, check: Callable[[UnitOfWork], T]) -> None:
        self._session = session
        self._check = check

    def __bool__(self) -> bool:
        """Refuse ``if inbox.once(session, msg):``, which would be true every time and record nothing."""
        raise LifecycleError(
            "nothing was recorded: enter the result of once() or once_many(), and test its value: "
            "'with inbox.once(session, msg) as first_time: if first_time: …'"
        )

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
