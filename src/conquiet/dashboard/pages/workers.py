"""The page of workers: host, process, version, health with its reason, entries in flight, liveness."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from conquiet.dashboard.access import Action
from conquiet.dashboard.views import Page, Values, View
from conquiet.management.models import ConsumerState
from conquiet.management.workers import StreamWorker, WorkerFacts

_MOST: Final = 200
_ORDER: Final = (ConsumerState.DEAD, ConsumerState.UNKNOWN, ConsumerState.IDLE, ConsumerState.LIVE)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One process, with all the streams it reads.

    Attributes:
        state: The worst of its consumers' states.
        lease_s: Seconds until the first of its liveness keys expires.
        ended: Its process is known to have ended.
        disconnected: Its connections to Redis are closed.
    """

    name: str
    group: str
    state: ConsumerState
    facts: WorkerFacts | None
    streams: tuple[str, ...]
    pending: int
    lease_s: float | None
    ended: bool = False
    disconnected: bool = False


def as_rows(workers: tuple[StreamWorker, ...]) -> list[WorkerRow]:
    """Return one row for each consumer name and group, the dead first. Pure."""
    members: dict[tuple[str, str], list[StreamWorker]] = {}
    for one in workers:
        members.setdefault((one.group, one.name), []).append(one)
    rows = [
        WorkerRow(
            name=name,
            group=group,
            state=min((one.state for one in those), key=_ORDER.index),
            facts=next((one.facts for one in those if one.facts is not None), None),
            streams=tuple(sorted(one.stream for one in those)),
            pending=sum(one.pending for one in those),
            lease_s=min((one.lease_s for one in those if one.lease_s is not None), default=None),
            ended=any(one.ended for one in those),
            disconnected=any(one.disconnected for one in those),
        )
        for (group, name), those in members.items()
    ]
    return sorted(rows, key=lambda row: (_ORDER.index(row.state), row.group, row.name))


async def workers(view: View) -> Values:
    """Return all workers."""
    found = await view.parts.fleet.workers()
    rows = as_rows(tuple(one for one in found if view.access.allows(Action.VIEW, one.stream)))
    alive = [row for row in rows if row.state.is_alive]
    facts = [row.facts for row in alive if row.facts is not None]
    return {
        "rows": rows[:_MOST],
        "count": len(rows),
        "alive": len(alive),
        "dead": sum(row.state is ConsumerState.DEAD for row in rows),
        "hosts": len({one.host for one in facts}),
        "versions": Counter(one.version for one in facts),
    }


PAGES = (Page("/workers", "workers", "workers.html", workers, urgent=lambda view: view.parts.fleet.disconnected()),)
