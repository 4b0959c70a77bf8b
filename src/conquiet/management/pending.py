"""What was delivered and not acknowledged: looking at it, and giving it to somebody else."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from conquiet.errors import ConfigurationError
from conquiet.kernel.validation import require_positive, require_text
from conquiet.management.models import PendingFacts, Reclaimed
from conquiet.management.overview import ALIVE_MS, describe_stream, require_group
from conquiet.management.server import Server
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
    wanted = wanted or PendingFilter()
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
    return [
        PendingFacts(
            id=row.id,
            consumer=_name(row),
            idle_ms=row.idle_ms,
            deliveries=row.deliveries,
            ghost=_name(row) in dead,
            trimmed=not entries(reply),
        )
        for row, reply in zip(rows, found, strict=True)
    ]


def _page(server: Server, stream: str, group: str, wanted: PendingFilter, start: str) -> list[Pending]:
    idle: tuple[Word, ...] = ("IDLE", wanted.min_idle_ms) if wanted.min_idle_ms else ()
    owner: tuple[Word, ...] = (wanted.consumer,) if wanted.consumer else ()
    return pending_rows(
        server.call("XPENDING", stream, group, *idle, start, "+", _PAGE, *owner, stream=stream, group=group)
    )


def _meets(row: Pending, wanted: PendingFilter, dead: set[str]) -> bool:
    return row.deliveries >= wanted.min_deliveries and (not wanted.ghosts_only or _name(row) in dead)


def _name(row: Pending) -> str:
    return row.consumer.decode("utf-8", "backslashreplace")


def reclaim(
    server: Server, stream: str, group: str, wanted: PendingFilter, *, owner: str = "", dry_run: bool = False
) -> Reclaimed:
    """Take entries away from their owners. Their delivery counts stay as they are.

    With ``owner`` they become that consumer's own: it finds them when it starts. Without, they count
    as untouched for a week, so that the next worker that looks for stale work takes them at once.

    XCLAIM checks the idle time again on the server: what was touched meanwhile is left alone.
    """
    if not (wanted.consumer or wanted.min_idle_ms or wanted.min_deliveries or wanted.ghosts_only):
        raise ConfigurationError(
            "a reclaim without any filter would take work from live consumers; give a consumer, an idle time, "
            "a number of deliveries, or ghosts only"
        )
    heir = require_text("owner", owner) if owner else RECLAIMED
    ids = [row.id for row in list_pending(server, stream, group, wanted) if not row.trimmed]
    if dry_run or not ids:
        return Reclaimed(tuple(ids), heir, dry_run=dry_run)
    age: tuple[Word, ...] = () if owner else ("IDLE", _LONG_AGO_MS)
    # Somebody may have touched an entry since we looked. With ghosts the wish is "whoever is dead": an
    # entry that was touched within the last second is not a ghost's any more.
    least_idle_ms = wanted.min_idle_ms or (1_000 if wanted.ghosts_only else 0)
    claimed = server.call(
        "XCLAIM", stream, group, heir, least_idle_ms, *ids, *age, "JUSTID", stream=stream, group=group
    )
    return Reclaimed(tuple(text(one) for one in claimed if one is not None), heir, dry_run=False)
