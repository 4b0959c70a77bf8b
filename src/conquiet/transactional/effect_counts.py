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

# Effects that each transaction has rolled back to a savepoint, by source and outcome: not counted at COMMIT.
_forgotten: "WeakKeyDictionary[object, Counter[tuple[str, str]]]" = WeakKeyDictionary()


def count_effects(unit: UnitOfWork, source: str, outcome: str, n: int) -> None:
    """Count effects when the transaction of ``unit`` commits, except for effects that are forgotten until then."""
    forgotten = _forgotten.setdefault(unit.transaction, Counter())

    def step() -> None:
        less = min(n, forgotten[source, outcome])
        forgotten[source, outcome] -= less
        count(INBOX_MESSAGES_TOTAL, source, outcome, n=n - less)

    unit.after_commit(step)


def forget_effect(unit: UnitOfWork, source: str, outcome: str) -> None:
    """Do not count an effect of ``count_effects``: it was rolled back to a savepoint."""
    forgotten = _forgotten.get(unit.transaction)
    if forgotten is not None:
        forgotten[source, outcome] += 1


def count_single_effect(unit: UnitOfWork, source: str, outcome: str) -> None:
    """Count the decision about one message, an effect when the transaction commits, and record it in its span."""
    match outcome:
        case "first":  # nearly always, and in a transaction of one message nothing is forgotten
            unit.after_commit(partial(count, INBOX_MESSAGES_TOTAL, source, outcome))
        case "reused_id":
            count_effects(unit, source, outcome, 1)
        case _:
            count(INBOX_MESSAGES_TOTAL, source, outcome)
    tracing.note("inbox.outcome", outcome)
