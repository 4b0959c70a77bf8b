"""List and reclaim entries that were delivered and not acknowledged."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from conquiet.core.validation import require_positive, require_seconds, require_text
from conquiet.errors import ConfigurationError
from conquiet.management.liveness import ALIVE_S
from conquiet.management.models import ConsumerState, PendingReport, ReclaimReport
from conquiet.management.overview import describe_key, require_group
from conquiet.management.partitions import existing_partitions
from conquiet.management.redis_admin import RedisAdmin, display_name
from conquiet.redis_transport.ids import parse_id
from conquiet.redis_transport.replies import Pending, entries, pending_rows, text

if TYPE_CHECKING:
    from conquiet.redis_transport.commands import Word

RECLAIMED = "conquiet-reclaimed"
"""Owner of reclaimed entries if the caller names none."""

_LONG_AGO_MS = 7 * 24 * 60 * 60 * 1000
_PAGE = 1_000
_MAX_PAGES = 100

RECLAIM = """
local claimed = {}
local options = {'JUSTID'}
if ARGV[3] ~= '' then options = {'IDLE', ARGV[3], unpack(options)} end
if ARGV[4] ~= '' then options = {'RETRYCOUNT', ARGV[4], unpack(options)} end
for i = 5, #ARGV, 4 do
  local row = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  local same = row and row[2] == ARGV[i + 1] and row[4] == tonumber(ARGV[i + 3])
  if same and row[3] >= tonumber(ARGV[i + 2]) then
    local moved = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], unpack(options))
    if #moved > 0 then claimed[#claimed + 1] = ARGV[i] end
  end
end
return claimed
"""
"""Claim entries that have not changed since they were listed. KEYS: stream; ARGV: group, new owner, idle ms to set or
empty, delivery count to set or empty, then for each its id, and the owner, idle ms and deliveries that were listed.

XCLAIM checks only the idle time. An entry with another owner, another delivery count or a shorter idle time has been
claimed by another worker since, and remains with that worker.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFilter:
    """Selects pending entries. All conditions must hold.

    Attributes:
        consumer: Name of the owner; empty for any.
        min_idle_s: Shortest idle time.
        min_deliveries: Smallest number of deliveries.
        dead_owners_only: The owner is proved dead. Before Redis 7.2 the server proves no death.
        limit: Most entries.
    """

    consumer: str = ""
    min_idle_s: float = 0.0
    min_deliveries: int = 0
    dead_owners_only: bool = False
    limit: int = 100

    def __post_init__(self) -> None:
        require_positive("limit", self.limit)
        require_seconds("min_idle_s", self.min_idle_s, zero_allowed=True)
        require_positive("min_deliveries", self.min_deliveries, zero_allowed=True)


def list_pending(
    server: RedisAdmin, stream: str, group: str, where: PendingFilter | None = None, *, alive_s: float = ALIVE_S
) -> list[PendingReport]:
    """Return pending entries in the order of their ids, of all partitions. Changes nothing.

    Raises:
        NoSuchStreamError: There is no such stream or group.
    """
    names = existing_partitions(server, stream)
    found = [report for name in names for report in _list_key(server, name, group, where or PendingFilter(), alive_s)]
    if len(names) == 1:
        return found
    return sorted(found, key=lambda report: parse_id(report.id))[: (where or PendingFilter()).limit]


def _list_key(server: RedisAdmin, stream: str, group: str, where: PendingFilter, alive_s: float) -> list[PendingReport]:
    rows, states = _find(server, stream, group, where, alive_s)
    return [
        PendingReport(
            id=row.id,
            consumer=display_name(row.consumer),
            idle_s=row.idle_ms / 1000,
            deliveries=row.deliveries,
            owner=states.get(display_name(row.consumer), ConsumerState.UNKNOWN),
            trimmed=trimmed,
        )
        for row, trimmed in rows
    ]


def _find(
    server: RedisAdmin, stream: str, group: str, where: PendingFilter, alive_s: float
) -> tuple[list[tuple[Pending, bool]], dict[str, ConsumerState]]:
    """Return the rows, each with True if its entry was deleted, and the state of each consumer."""
    facts = require_group(describe_key(server, stream, alive_s=alive_s), group)
    states = {consumer.name: consumer.state for consumer in facts.consumers}
    dead = {name for name, state in states.items() if state is ConsumerState.DEAD}
    rows: list[Pending] = []
    start = "-"
    for _ in range(_MAX_PAGES):
        page = _page(server, stream, group, where, start)
        rows += [row for row in page if _matches(row, where, dead)]
        if len(page) < _PAGE or len(rows) >= where.limit:
            break
        start = f"({page[-1].id}"
    rows = rows[: where.limit]
    found = server.pipeline(
        [("XRANGE", stream, row.id, row.id, "COUNT", 1) for row in rows], stream=stream, group=group
    )
    return [(row, not entries(reply)) for row, reply in zip(rows, found, strict=True)], states


def _page(server: RedisAdmin, stream: str, group: str, where: PendingFilter, start: str) -> list[Pending]:
    idle: tuple[Word, ...] = ("IDLE", round(where.min_idle_s * 1000)) if where.min_idle_s else ()
    owner: tuple[Word, ...] = (where.consumer,) if where.consumer else ()
    return pending_rows(
        server.call("XPENDING", stream, group, *idle, start, "+", _PAGE, *owner, stream=stream, group=group)
    )


def _matches(row: Pending, where: PendingFilter, dead: set[str]) -> bool:
    return row.deliveries >= where.min_deliveries and (not where.dead_owners_only or display_name(row.consumer) in dead)


def reclaim(
    server: RedisAdmin,
    stream: str,
    group: str,
    where: PendingFilter,
    *,
    owner: str = "",
    reset_deliveries: bool = False,
    dry_run: bool = False,
) -> ReclaimReport:
    """Claim entries from their owners. Delivery counts are kept unless ``reset_deliveries`` is given.

    ``reset_deliveries`` sets the counts to 0, so that an engine runs entries that had reached its ``max_deliveries``.

    With ``owner`` the entries belong to that consumer, which reads them when it starts. Without ``owner`` their idle
    time is set to a week, so that the next worker that claims stale entries claims them immediately.

    The claiming script checks owner, idle time and delivery count again, and skips an entry that has changed since the
    listing.
    """
    if not (where.consumer or where.min_idle_s or where.min_deliveries or where.dead_owners_only):
        raise ConfigurationError(
            "a reclaim without any filter would claim from live consumers; give a consumer, an idle time, "
            "a number of deliveries, or dead owners only"
        )
    new_owner = require_text("owner", owner) if owner else RECLAIMED
    claimed: list[str] = []
    for name in existing_partitions(server, stream):
        left = replace(where, limit=max(1, where.limit - len(claimed)))
        if len(claimed) < where.limit:
            age = "" if owner else str(_LONG_AGO_MS)
            count = "0" if reset_deliveries else ""
            claimed += _reclaim_key(server, name, group, left, (new_owner, age, count), dry_run=dry_run)
    return ReclaimReport(tuple(claimed), new_owner, dry_run=dry_run, reset=reset_deliveries)


def _reclaim_key(
    server: RedisAdmin, stream: str, group: str, where: PendingFilter, how: tuple[str, str, str], *, dry_run: bool
) -> list[str]:
    """Claim entries of one partition; return their ids. ``how``: new owner, idle time, delivery count."""
    found, _ = _find(server, stream, group, where, ALIVE_S)
    rows = [row for row, trimmed in found if not trimmed]
    if dry_run:
        return [row.id for row in rows]
    claimed: list[str] = []
    for start in range(0, len(rows), _PAGE):
        seen: list[Word] = []
        for row in rows[start : start + _PAGE]:
            seen += [row.id, row.consumer, row.idle_ms, row.deliveries]
        reply = server.call("EVAL", RECLAIM, 1, stream, group, *how, *seen, stream=stream, group=group)
        claimed += map(text, reply)
    return claimed
