"""What was delivered and not acknowledged: looking at it, and giving it to somebody else."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from conquiet.errors import ConfigurationError
from conquiet.kernel.validation import require_positive, require_text
from conquiet.management.models import PendingFacts, Reclaimed
from conquiet.management.overview import ALIVE_MS, describe_stream, require_group
from conquiet.management.scripts import RECLAIM
from conquiet.management.server import Server, shown
from conquiet.queue.replies import Pending, entries, pending_rows, text

if TYPE_CHECKING:
    from conquiet.queue.commands import Word

RECLAIMED = "conquiet-reclaimed"
"""Owner of what was reclaimed for nobody in particular."""

_LONG_AGO_MS = 7 * 24 * 60 * 60 * 1000
_PAGE = 1_000
_MAX_PAGES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFilter:
    """Which pending entries are meant. All conditions must hold.

    Attributes:
        consumer: Owned by this one; empty means by anybody.
        min_idle_ms: Untouched for at least so long.
        min_deliveries: Delivered at least so often.
        ghosts_only: Owned by somebody who is not alive.
        limit: At most so many.
    """

    consumer: str = ""
    min_idle_ms: int = 0
    min_deliveries: int = 0
    ghosts_only: bool = False
    limit: int = 100

    def __post_init__(self) -> None:
        require_positive("limit", self.limit)
        if self.min_idle_ms < 0 or self.min_deliveries < 0:
            raise ConfigurationError("min_idle_ms and min_deliveries must not be negative")


def list_pending(
    server: Server, stream: str, group: str, wanted: PendingFilter | None = None, *, alive_ms: int = ALIVE_MS
) -> list[PendingFacts]:
    """Return pending entries in the order of their ids. Changes nothing.

    Raises:
        NoSuchStreamError: There is no such stream or group.
    """
    rows, dead = _look(server, stream, group, wanted or PendingFilter(), alive_ms)
    return [
        PendingFacts(
            id=row.id,
            consumer=shown(row.consumer),
            idle_ms=row.idle_ms,
            deliveries=row.deliveries,
            ghost=shown(row.consumer) in dead,
            trimmed=trimmed,
        )
        for row, trimmed in rows
    ]


def _look(
    server: Server, stream: str, group: str, wanted: PendingFilter, alive_ms: int
) -> tuple[list[tuple[Pending, bool]], set[str]]:
    """Return the rows, each with whether its entry is gone, and who is dead."""
    facts = require_group(describe_stream(server, stream, alive_ms=alive_ms), group)
    dead = {consumer.name for consumer in facts.consumers if not consumer.alive}
    rows: list[Pending] = []
    start = "-"
    for _ in range(_MAX_PAGES):
        page = _page(server, stream, group, wanted, start)
        rows += [row for row in page if _meets(row, wanted, dead)]
        if len(page) < _PAGE or len(rows) >= wanted.limit:
            break
        start = f"({page[-1].id}"
    rows = rows[: wanted.limit]
    found = server.pipeline(
        [("XRANGE", stream, row.id, row.id, "COUNT", 1) for row in rows], stream=stream, group=group
    )
    return [(row, not entries(reply)) for row, reply in zip(rows, found, strict=True)], dead


def _page(server: Server, stream: str, group: str, wanted: PendingFilter, start: str) -> list[Pending]:
    idle: tuple[Word, ...] = ("IDLE", wanted.min_idle_ms) if wanted.min_idle_ms else ()
    owner: tuple[Word, ...] = (wanted.consumer,) if wanted.consumer else ()
    return pending_rows(
        server.call("XPENDING", stream, group, *idle, start, "+", _PAGE, *owner, stream=stream, group=group)
    )


def _meets(row: Pending, wanted: PendingFilter, dead: set[str]) -> bool:
    return row.deliveries >= wanted.min_deliveries and (not wanted.ghosts_only or shown(row.consumer) in dead)


def reclaim(
    server: Server, stream: str, group: str, wanted: PendingFilter, *, owner: str = "", dry_run: bool = False
) -> Reclaimed:
    """Take entries away from their owners. Their delivery counts stay as they are.

    With ``owner`` they become that consumer's own: it finds them when it starts. Without, they count
    as untouched for a week, so that the next worker that looks for stale work takes them at once.

    Owner, idle time and delivery count are looked at once more in the step that takes over: what somebody
    touched meanwhile is left alone.
    """
    if not (wanted.consumer or wanted.min_idle_ms or wanted.min_deliveries or wanted.ghosts_only):
        raise ConfigurationError(
            "a reclaim without any filter would take work from live consumers; give a consumer, an idle time, "
            "a number of deliveries, or ghosts only"
        )
    heir = require_text("owner", owner) if owner else RECLAIMED
    found, _ = _look(server, stream, group, wanted, ALIVE_MS)
    rows = [row for row, trimmed in found if not trimmed]
    if dry_run:
        return Reclaimed(tuple(row.id for row in rows), heir, dry_run=True)
    age = "" if owner else str(_LONG_AGO_MS)
    claimed: list[str] = []
    for start in range(0, len(rows), _PAGE):
        seen: list[Word] = []
        for row in rows[start : start + _PAGE]:
            seen += [row.id, row.consumer, row.idle_ms, row.deliveries]
        reply = server.call("EVAL", RECLAIM, 1, stream, group, heir, age, *seen, stream=stream, group=group)
        claimed += map(text, reply)
    return Reclaimed(tuple(claimed), heir, dry_run=False)
