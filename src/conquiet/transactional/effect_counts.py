"""Count the decisions of the inbox: an effect counts when its transaction commits.

    first, reused_id      at COMMIT: a run that is rolled back has had no effect
    duplicate, conflict   immediately: there is nothing to commit

With a ``DbSession``, and with the session of another framework, the count follows the server's reply to COMMIT. With
the other sessions it follows SQLAlchemy's event, which comes just before COMMIT is sent.
"""

from collections import Counter
from functools import partial
from weakref import WeakKeyDictionary

from conquiet.core import tracing
from conquiet.metrics.registry import INBOX_MESSAGES_TOTAL
from conquiet.metrics.safety import count
from conquiet.transactional.unit_of_work import UnitOfWork

_AT_COMMIT = frozenset({"first", "reused_id"})

# Forgotten messages of the batch of a transaction, by source.
_forgotten: "WeakKeyDictionary[object, Counter[str]]" = WeakKeyDictionary()


def count_effect(unit: UnitOfWork, source: str, outcome: str, *, n: int = 1) -> None:
    """Count a decision of the inbox; an effect when the transaction of ``unit`` commits."""
    if outcome in _AT_COMMIT and n:
        unit.after_commit(partial(count, INBOX_MESSAGES_TOTAL, source, outcome, n=n))
    else:
        count(INBOX_MESSAGES_TOTAL, source, outcome, n=n)


def count_batch(unit: UnitOfWork, source: str, n: int) -> None:
    """Count the new messages of a batch when its transaction commits, without the forgotten ones."""
    forgotten = _forgotten.setdefault(unit.transaction, Counter())

    def step() -> None:
        kept = max(0, n - forgotten.pop(source, 0))
        count(INBOX_MESSAGES_TOTAL, source, "first", n=kept)

    unit.after_commit(step)


def forget_effect(unit: UnitOfWork, source: str) -> None:
    """Do not count a message of a batch: its effect was rolled back to a savepoint."""
    forgotten = _forgotten.get(unit.transaction)
    if forgotten is not None:
        forgotten[source] += 1


def count_single_effect(unit: UnitOfWork, source: str, outcome: str) -> None:
    """Count the effect of a message in its own transaction, and record it in its span."""
    count_effect(unit, source, outcome)
    tracing.note("inbox.outcome", outcome)
