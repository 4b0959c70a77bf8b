"""The inbox: a row in the handler's own transaction that says "this message's effect is here".

    INSERT key ──┬─ inserted ─────────▶ first time: the handler runs, its statements commit with the row
                 ├─ waits ────────────▶ somebody is handling it right now; how that ends decides:
                 │                        committed: a duplicate          rolled back or died: inserted
                 ├─ duplicate ────────▶ the effect is there: step aside, acknowledge
                 └─ conflict ─────────▶ waited too long, or two waited: ConflictError, the message stays pending

The row is written *before* the handler's statements. Written after them, two runs of one message
would both do their work and only then find out.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import TextClause, text
from sqlalchemy.engine import Engine

from conquiet.bridge.keys import InboxKey, KeyFunction, key_of
from conquiet.bridge.metrics import observe_inbox
from conquiet.bridge.schema import INBOX_TABLE, if_missing
from conquiet.bridge.words import words_for
from conquiet.db.dialects import is_mysql
from conquiet.db.faults import Fault, fault_of
from conquiet.db.session import DbSession
from conquiet.db.sql import quoted
from conquiet.errors import ConflictError, DbWriteError, LifecycleError
from conquiet.kernel.functions import require_plain_function
from conquiet.kernel.validation import require_positive, require_seconds, require_table

logger = logging.getLogger(__name__)

# What each open session has entered, in whatever inbox object.
_entered: "WeakKeyDictionary[DbSession, set[tuple[str, InboxKey]]]" = WeakKeyDictionary()

_WHERE: Final = "`source` = :source AND `consumer_group` = :grp AND `message_id` = :id"


class Inbox:
    """Remembers which messages have had their effect in this database.

    Holds no connection and may be shared by threads.

    Args:
        table: Where, as made by ``create_tables``.
        key: Chooses what a message is known by, if not (stream, group, entry id): see ``key_of``. Return a
            business key where one and the same message can arrive under several ids.
    """

    def __init__(self, table: str = INBOX_TABLE, *, key: KeyFunction | None = None) -> None:
        self.table = require_table("table", table)
        if key is not None:
            require_plain_function("key", key)
        self._key = key
        name = quoted(table)
        columns = "`source`, `consumer_group`, `message_id`, `handled_at`"
        # A plain INSERT. INSERT IGNORE would take other errors for duplicates, and an upsert would not wait.
        self._insert = {
            mysql: text(f"INSERT INTO {name} ({columns}) VALUES (:source, :grp, :id, {words_for(mysql=mysql).now})")  # noqa: S608 - a checked name
            for mysql in (True, False)
        }
        # A locking read: the transaction's snapshot may be older than the row.
        self._look = {
            mysql: text(f"SELECT 1 FROM {name} WHERE {_WHERE}{words_for(mysql=mysql).share}")  # noqa: S608
            for mysql in (True, False)
        }

    @contextmanager
    def once(self, session: DbSession, msg: Any) -> Iterator[bool]:
        """Enter the message; what is given says whether it is the first time. Use it before any other statement.

        >>> with DbSession(engine) as session, inbox.once(session, msg) as first_time:  # doctest: +SKIP
        ...     if first_time:
        ...         session.execute("UPDATE …")

        False means that the effect is in the database, committed. Do nothing, and acknowledge.

        Raises:
            ConflictError: Another run of the message did not end in time, or two runs waited for it. Nothing
                was written; leave the message pending.
            MessageKeyError: The message has no usable key.
            LifecycleError: This very session has entered the message before.
        """
        yield self.enter(session, key_of(msg, self._key))

    def enter(self, session: DbSession, key: InboxKey) -> bool:
        """Write the row of ``key`` into the session's transaction. False if it was there. One round trip if not."""
        entered = _entered.setdefault(session, set())
        if (self.table, key) in entered:
            # Answering False here would make a handler believe that its work is done, and commit the row without it.
            raise LifecycleError("this session has entered the message into the inbox already: use once() in one place")
        binds = {"source": key.source.encode(), "grp": key.group.encode(), "id": key.id.encode()}
        mysql = is_mysql(session.engine)
        try:
            session.execute(self._insert[mysql], binds)
        except ConflictError:
            observe_inbox(key.source, "conflict")
            raise
        except DbWriteError as error:
            if not _is_duplicate(error) or not self._is_there(session, self._look[mysql], binds):
                raise if_missing(error, self.table) from error.__cause__
            observe_inbox(key.source, "duplicate")
            logger.info("message had its effect before, stepping aside", extra=_facts(key))
            return False
        entered.add((self.table, key))
        observe_inbox(key.source, "first")
        return True

    def contains(self, session: DbSession, msg: Any) -> bool:
        """Tell whether the effect of the message is in the database, without entering it."""
        key = key_of(msg, self._key)
        binds = {"source": key.source.encode(), "grp": key.group.encode(), "id": key.id.encode()}
        return self._is_there(session, self._look[is_mysql(session.engine)], binds)

    @staticmethod
    def _is_there(session: DbSession, look: TextClause, binds: dict[str, bytes]) -> bool:
        # 1062 may also come from a trigger of yours. Taking that for our duplicate would lose the message.
        return session.execute_scalar(look, binds) is not None

    def purge(self, engine: Engine, *, older_than_s: float, batch: int = 1_000, max_batches: int | None = None) -> int:
        """Delete rows older than that and return how many. Safe while others insert; many short transactions.

        A row may go once its message cannot come back: see docs/exactly-once.md for how long that is.
        A message that comes back later than that has its effect a second time.

        Args:
            engine: Where the table is.
            older_than_s: By the database's clock.
            batch: Rows per transaction.
            max_batches: Stop after so many, even if there is more.
        """
        require_seconds("older_than_s", older_than_s)
        require_positive("batch", batch)
        words = words_for(mysql=is_mysql(engine))
        statement = text(words.delete_oldest(quoted(self.table), "handled_at", f"`handled_at` < {words.ago}"))
        deleted, batches = 0, 0
        while max_batches is None or batches < max_batches:
            with DbSession(engine) as session:
                words.read_committed(session)
                found = session.execute(statement, {"ago": words.microseconds(older_than_s), "batch": batch})
            deleted, batches = deleted + found, batches + 1
            if found < batch:
                break
        return deleted


def _is_duplicate(error: DbWriteError) -> bool:
    return error.__cause__ is not None and fault_of(error.__cause__) is Fault.DUPLICATE


def _facts(key: InboxKey) -> dict[str, str]:
    # Not the id: a business key may be personal data.
    return {"source": key.source, "group": key.group}
