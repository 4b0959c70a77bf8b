"""Count the decisions of the inbox: an effect counts when its transaction commits.

    first, reused_id      at COMMIT: a run that is rolled back has had no effect
    duplicate, conflict   immediately: there is nothing to commit

With a ``DbSession``, and with the session of another framework, the count follows the server's reply to COMMIT. With
the other sessions it follows SQLAlchemy's event, which comes just before COMMIT is sent.
"""

from functools import partial

from conquiet.core import tracing
from conquiet.metrics.registry import INBOX_MESSAGES_TOTAL
from conquiet.metrics.safety import count
from conquiet.transactional.unit_of_work import UnitOfWork

_AT_COMMIT = frozenset({"first", "reused_id"})


def count_effect(unit: UnitOfWork, source: str, outcome: str, *, n: int = 1) -> None:
    """Count a decision of the inbox; an effect when the transaction of ``unit`` commits."""
    if outcome in _AT_COMMIT and n:
        unit.after_commit(partial(count, INBOX_MESSAGES_TOTAL, source, outcome, n=n))
    else:
        count(INBOX_MESSAGES_TOTAL, source, outcome, n=n)


def count_single_effect(unit: UnitOfWork, source: str, outcome: str) -> None:
    """Count the effect of a message in its own transaction, and record it in its span."""
    count_effect(unit, source, outcome)
    tracing.note("inbox.outcome", outcome)
