"""Report outbox rows for targets that the relay does not have: a typo, or a missing relay.

Several relays with different targets may share an outbox, so such rows may belong to another relay. They are reported
when they have been due for a minute, because then no other relay publishes them either.
"""

import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.db.session import DbSession
from conquiet.metrics.registry import OUTBOX_UNSERVED_SECONDS
from conquiet.metrics.safety import set_gauge
from conquiet.transactional.sql_dialect import SqlDialect
from conquiet.transactional.statements import outbox_statements

logger = FactLogger(__name__)

_OVERDUE_S: Final = 60.0
_PAUSE_S: Final = 30.0
_MAX_NAMES: Final = 100


class UnservedTargets:
    """Finds such rows every half minute, and reports each target once until its rows are gone.

    Args:
        table: The outbox.
        served: Names of the relay's targets.
        dialect: The SQL of the database.
    """

    def __init__(self, table: str, served: Iterable[str], dialect: SqlDialect) -> None:
        self.ages_s: dict[str, float] = {}
        self._table = table
        self._served = frozenset(served)
        self._next_check = 0.0
        self._dialect = dialect

    @property
    def is_due(self) -> bool:
        """True if it is time to check again."""
        return time.monotonic() >= self._next_check

    def check(self, session: DbSession) -> None:
        """Read the overdue rows of other targets, report new targets, record the age of the oldest row."""
        self._next_check = time.monotonic() + _PAUSE_S
        found = overdue_targets(session, self._table, self._dialect, served=self._served)
        for target in found.keys() - self.ages_s.keys():
            logger.warning(
                "outbox rows wait for a target that this relay does not serve, and no other relay takes them: correct "
                "the name, or start a relay for it",
                table=self._table,
                target=printable(target),
                oldest_age_s=round(found[target], 1),
            )
        self.ages_s = found
        set_gauge(OUTBOX_UNSERVED_SECONDS, self._table, value=max(found.values(), default=0.0))


def overdue_targets(
    session: DbSession, table: str, dialect: SqlDialect, *, served: AbstractSet[str] = frozenset()
) -> dict[str, float]:
    """Return the targets with rows that have been due for a minute, with the age of the oldest row in seconds.

    Args:
        session: The database.
        table: The outbox.
        dialect: The SQL of the database.
        served: Targets to leave out.
    """
    statements, overdue = outbox_statements(dialect, table), dialect.interval(_OVERDUE_S)
    found: dict[str, float] = {}
    for row in session.fetch_all(statements.target_names):
        name = bytes(row["target"])
        target = name.decode(errors="replace")
        if target in served or len(found) == _MAX_NAMES:
            continue
        ages_s = [
            float(age) / 1e6
            for free in (0, 1)
            if (age := session.execute_scalar(statements.overdue, {"target": name, "free": free, "ago": overdue}))
            is not None
        ]
        if ages_s:
            found[target] = max(ages_s)
    return found
