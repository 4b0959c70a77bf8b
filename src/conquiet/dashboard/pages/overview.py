"""The overview page: all streams, urgent problems, running workers; and the page of the doctor's findings."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from conquiet.dashboard.access import Action
from conquiet.dashboard.views import Page, Values, View
from conquiet.management.dead_letter_pages import stream_token

if TYPE_CHECKING:
    from conquiet.dashboard.fleet import FleetView
    from conquiet.management.fleet import StreamSnapshot

ROWS: Final = 50

_SORTS: Final = {
    "name": lambda one: one.key,
    "lag": lambda one: -(one.lag or 0),
    "oldest": lambda one: -(one.oldest_age_s or 0.0),
    "in_flight": lambda one: -one.pending,
    "delayed": lambda one: -one.delayed,
    "dead": lambda one: -one.dead,
}


def visible(view: View, fleet: "FleetView") -> "list[StreamSnapshot]":
    """Return the streams that the user may see."""
    return [one for one in fleet.streams if view.access.allows(Action.VIEW, stream_token(one.raw_key))]


async def overview(view: View) -> Values:
    """Return the totals and one page of streams."""
    parts = view.parts
    fleet = await parts.fleet.streams()
    streams = visible(view, fleet)
    wanted, order = view.text("q").strip().lower(), view.text("sort", "name")
    matching = [one for one in streams if wanted in one.key.lower()]
    matching.sort(key=_SORTS.get(order, _SORTS["name"]))
    page = view.number("page", 1)
    pages = max(1, -(-len(matching) // ROWS))
    shown = matching[(min(page, pages) - 1) * ROWS : min(page, pages) * ROWS]
    sparks = await parts.fleet.sparklines(shown)
    retrying = await parts.fleet.retrying(shown)
    workers = await parts.fleet.workers()
    names = {one.key for one in streams}
    alive = [one for one in workers if one.stream in names and one.state.is_alive]
    processes = {(one.facts.host, one.facts.pid) if one.facts else (one.name, 0) for one in alive}
    flows = [fleet.flow_of(one.raw_key) for one in streams]
    return {
        "streams": shown,
        "fleet": fleet,
        "sparks": sparks,
        "retrying": retrying,
        "q": view.text("q"),
        "sort": order,
        "page_number": min(page, pages),
        "pages": pages,
        "matching": len(matching),
        "totals": {
            "streams": len(streams),
            "rate_in": _sum([one.per_s_in for one in flows]),
            "rate_out": _sum([one.per_s_out for one in flows]),
            "lag": sum(one.lag or 0 for one in streams),
            "oldest": max((one.oldest_age_s for one in streams if one.oldest_age_s is not None), default=None),
            "in_flight": sum(one.pending for one in streams),
            "delayed": sum(one.delayed for one in streams) - sum(one.retrying for one in retrying.values()),
            "retrying": sum(one.retrying for one in retrying.values()),
            "dead": sum(one.dead for one in streams),
        },
        "workers_alive": len(processes),
        "has_groups": any(one.groups for one in streams),
        "doctor": parts.doctor.ask(parts.servers) if view.access.allows(Action.VIEW) else None,
    }


def _sum(rates: Sequence[float | None]) -> float | None:
    known = [one for one in rates if one is not None]
    return sum(known) if known else None


async def doctor(view: View) -> Values:
    """Return all findings of the doctor."""
    if not view.access.allows(Action.VIEW):
        return {"doctor": None}
    return {"doctor": view.parts.doctor.ask(view.parts.servers)}


PAGES = (
    Page("/", "overview", "overview.html", overview),
    Page("/doctor", "overview", "doctor.html", doctor, interval_s=2.0),
)
