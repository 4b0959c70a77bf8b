"""Count the decisions of the inbox: an effect counts when its transaction commits.

    first, reused_id      at COMMIT: a run that is rolled back has had no effect
    duplicate, conflict   immediately: there is nothing to commit

With a ``DbSession``, and with the session of another framework, the count follows the server's reply to COMMIT. With
the other sessions it follows SQLAlchemy's event, which comes just before COMMIT is sent.
"""

from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import event
from sqlalchemy.engine import Connection

from conquiet.core import tracing
from conquiet.db.session import DbSession
from conquiet.metrics.registry import INBOX_MESSAGES_TOTAL
from conquiet.metrics.safety import count
from conquiet.transactional.unit_of_work import UnitOfWork

_AT_COMMIT = frozenset({"first", "reused_id"})

_pending: WeakKeyDictionary[Connection, list[tuple[str, str, int]]] = WeakKeyDictionary()


def count_effect(unit: UnitOfWork, source: str, outcome: str, *, n: int = 1) -> None:
    """Count a decision of the inbox; an effect when the transaction of ``unit`` commits."""
    if outcome not in _AT_COMMIT or not n:
        count(INBOX_MESSAGES_TOTAL, source, outcome, n=n)
        return
    after_commit = getattr(unit, "after_commit", None)
    if after_commit is not None:  # a transaction that SQLAlchemy does not know: see ``contrib.django``
        after_commit(lambda: count(INBOX_MESSAGES_TOTAL, source, outcome, n=n))
        return
    owner: Any = unit.owner
    if isinstance(owner, DbSession):
        owner.write_counts.after_commit(lambda: count(INBOX_MESSAGES_TOTAL, source, outcome, n=n))
        return
    waiting = _pending.get(owner)
    if waiting is None:
        waiting = _pending[owner] = []
        event.listen(owner, "commit", _committed)
        event.listen(owner, "rollback", _rolled_back)
    waiting.append((source, outcome, n))


def count_single_effect(unit: UnitOfWork, source: str, outcome: str) -> None:
    """Count the effect of a message in its own transaction, and record it in its span."""
    count_effect(unit, source, outcome)
    tracing.note("inbox.outcome", outcome)


def _committed(connection: Connection) -> None:
    waiting = _pending.get(connection, [])
    for source, outcome, number in waiting:
        count(INBOX_MESSAGES_TOTAL, source, outcome, n=number)
    waiting.clear()


def _rolled_back(connection: Connection) -> None:
    _pending.get(connection, []).clear()
