"""The dead letters of all partitions of a stream, with the interface of ``DeadLetters``.

The id of a dead letter names its partition (``processor.dead_letter_id``), so a call with an id applies to one only.

See docs/decisions/0051.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from conquiet.core.replay_report import ReplayReport
from conquiet.core.validation import require_selection
from conquiet.processor.dead_letter_id import DeadLetterId, parse_dead_id
from conquiet.processor.dead_letters import EVERYTHING, DeadCause, DeadFilter, DeadLetters, DeadMessage, DeadPage
from conquiet.processor.partition_layout import partition_names
from conquiet.redis_transport.client import AsyncClient


class PartitionedDeadLetters:
    """Inspects, replays and discards the dead letters of a stream, partitioned or not; see ``DeadLetters``.

    Args:
        client: A client without retries. The caller closes it.
        stream: Name of the stream. Each call reads its number of partitions.
    """

    def __init__(self, client: AsyncClient, stream: str) -> None:
        self._client = client
        self._stream = stream

    async def list(self, *, cursor: str | None = None, limit: int = 100, where: DeadFilter = EVERYTHING) -> DeadPage:
        """Return up to ``limit`` dead letters after ``cursor``, oldest first.

        With a filter, a page may hold fewer items, even none, and still have a cursor.
        """
        require_selection(where, DeadFilter)
        pages = [await one.list(cursor=cursor, limit=limit) for one in await self._partitions()]
        items = sorted((item for page in pages for item in page.items), key=_age)
        has_more = len(items) > limit or any(page.cursor is not None for page in pages)
        shown = items[:limit]
        return DeadPage(tuple(item for item in shown if where.accepts(item)), shown[-1].id if has_more else None)

    async def show(self, dead_id: str) -> DeadMessage | None:
        """Return one dead letter. None if it does not exist."""
        for one in await self._partitions():
            found = await one.show(dead_id)
            if found is not None:
                return found
        return None

    async def causes(self) -> Sequence[DeadCause]:
        """Return the causes, most frequent first. Reads all dead letters, page by page."""
        found: dict[tuple[str, str], DeadCause] = {}
        for one in await self._partitions():
            for cause in await one.causes():
                known = found.get((cause.event, cause.error_type))
                found[cause.event, cause.error_type] = cause if known is None else _joined(known, cause)
        return sorted(found.values(), key=lambda cause: -cause.count)

    async def replay(
        self,
        where: DeadFilter,
        *,
        dry_run: bool = False,
        rate_per_s: float | None = None,
        limit: int | None = None,
        to: str | None = None,
        on_progress: Callable[[ReplayReport], None] | None = None,
    ) -> ReplayReport:
        """Return dead letters to the end of their partitions. A message with a key joins the queue of its key.

        Partitions are replayed one after the other: ``rate_per_s`` and ``limit`` apply to all of them together.
        """
        require_selection(where, DeadFilter, limit=limit, on_progress=on_progress)
        total = ReplayReport(0, 0, 0, 0, dry_run)
        for one in await self._partitions():
            before = total
            left = None if limit is None else limit - before.replayed
            if left == 0:
                break
            report = await one.replay(
                where,
                dry_run=dry_run,
                rate_per_s=rate_per_s,
                limit=left,
                to=to,
                on_progress=None if on_progress is None else _adding(on_progress, before),
            )
            total = _sum(before, report)
        return total

    async def discard(self, where: DeadFilter, *, dry_run: bool = False, limit: int | None = None) -> int:
        """Delete at most ``limit`` dead letters permanently. Return how many were (or would be) deleted."""
        require_selection(where, DeadFilter, limit=limit)
        deleted = 0
        for one in await self._partitions():
            left = None if limit is None else limit - deleted
            if left == 0:
                break
            deleted += await one.discard(where, dry_run=dry_run, limit=left)
        return deleted

    async def discard_ids(self, ids: Sequence[str]) -> int:
        """Delete these dead letters permanently, in one step per partition. Return how many existed."""
        return sum([await one.discard_ids(ids) for one in await self._partitions()])

    async def count(self) -> int:
        """Return the number of dead letters."""
        return sum([await one.count() for one in await self._partitions()])

    async def _partitions(self) -> Sequence[DeadLetters]:
        names = await partition_names(self._client, self._stream)
        return [DeadLetters(self._client, name, partition=index) for index, name in enumerate(names)]


def _age(dead: DeadMessage) -> DeadLetterId:
    return parse_dead_id(dead.id)


def _joined(one: DeadCause, other: DeadCause) -> DeadCause:
    older = min(one, other, key=lambda cause: cause.first_ms)
    return replace(older, count=one.count + other.count, last_ms=max(one.last_ms, other.last_ms))


def _sum(one: ReplayReport, other: ReplayReport) -> ReplayReport:
    return ReplayReport(
        one.matched + other.matched,
        one.replayed + other.replayed,
        one.gone + other.gone,
        one.unreplayable + other.unreplayable,
        one.dry_run,
    )


def _adding(report: Callable[[ReplayReport], None], before: ReplayReport) -> Callable[[ReplayReport], None]:
    return lambda so_far: report(_sum(before, so_far))
