"""Read the backlog of the outbox and the size of the inbox, and unpark messages. Queries are bounded."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from conquiet.management.models import Report

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from conquiet.transactional import Outbox

_MOST_ROWS: Final = 1_000_000
_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class TargetBacklog(Report):
    """The outbox rows of one target.

    Attributes:
        target: Name of the target.
        waiting: Rows to publish, delayed ones included.
        parked: Rows that were parked after too many failures.
        oldest_age_s: Age of the oldest row that is not parked; 0 if there is none.
    """

    target: str
    waiting: int
    parked: int
    oldest_age_s: float


@dataclass(frozen=True, slots=True)
class InboxSize(Report):
    """Size of an inbox.

    Attributes:
        rows: Number of rows, counted up to a million.
        complete: True if all rows were counted.
        oldest_age_s: Age of the oldest row; None if there is none.
    """

    rows: int
    complete: bool
    oldest_age_s: float | None


def outbox_backlog(engine: "Engine", outbox: "Outbox") -> list[TargetBacklog]:
    """Return the backlog of each target, the oldest first. Reads an index of the whole outbox."""
    found = [
        TargetBacklog(target, one.waiting, one.parked, one.oldest_age_s)
        for target, one in outbox.backlog(engine).items()
    ]
    return sorted(found, key=lambda one: (-one.oldest_age_s, one.target))


def inbox_size(engine: "Engine", table: str, *, most_rows: int = _MOST_ROWS) -> InboxSize:
    """Return the size of an inbox. Counts at most ``most_rows``: counting a large table takes minutes."""
    from conquiet.db import DbSession
    from conquiet.errors import DbWriteError
    from conquiet.transactional.schema import if_missing
    from conquiet.transactional.sql_dialect import dialect_named

    sql = dialect_named(engine.dialect.name)
    try:
        with DbSession(engine) as session:
            rows = int(session.execute_scalar(sql.inbox_count(table), {"limit": most_rows + 1}))
            age_us = session.execute_scalar(sql.inbox_oldest(table))
    except DbWriteError as error:
        raise if_missing(error, table) from error.__cause__
    return InboxSize(min(rows, most_rows), rows <= most_rows, None if age_us is None else max(0.0, float(age_us) / 1e6))


def unpark(engine: "Engine", outbox: "Outbox", seqs: Iterable[int]) -> int:
    """Unpark rows, so that the relay retries them; return how many of them were parked."""
    return sum(outbox.unpark(engine, seq) for seq in seqs)


def unpark_all(engine: "Engine", outbox: "Outbox", *, target: str | None = None) -> int:
    """Unpark all rows, or all rows of one target; return how many there were.

    A row that is parked again during the call is not unparked twice.
    """
    done, last = 0, 0
    while page := outbox.parked(engine, limit=_PAGE, after=last):
        last = page[-1].seq
        done += unpark(engine, outbox, (one.seq for one in page if target is None or one.target == target))
    return done
