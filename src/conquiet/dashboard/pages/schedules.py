"""The page of schedules: next and last runs, missed ticks; pause, resume and run them."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from conquiet.core.redaction import printable
from conquiet.dashboard.access import Action
from conquiet.dashboard.actions import ActionRoute, Result, named_stream
from conquiet.dashboard.formatting import duration
from conquiet.dashboard.forms import Form
from conquiet.dashboard.views import Page, Values, View
from conquiet.errors import ConfigurationError
from conquiet.management.schedule_admin import run_schedule_now, with_schedules

T = TypeVar("T")

_RUNS: Final = 10


def when_text(when: Any) -> str:
    """Return the times of an entry as readable text. Pure."""
    expression, seconds, moment = (getattr(when, name, None) for name in ("expression", "seconds", "at"))
    if expression is not None:
        return f"{expression} {getattr(when, 'tz', '')}".strip()
    if seconds is not None:
        return f"every {duration(float(seconds))}"
    return f"once at {moment}" if moment is not None else str(when)


async def _with(view: View, group: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Return ``await work(schedules)`` with the entries of a group."""
    return await view.parts.servers.redis_async(lambda client: with_schedules(client, group, work))


async def schedules(view: View) -> Values:
    """Return the entries of each group, and the next runs."""
    groups: list[tuple[str, list[Any], list[Any]]] = []
    for group in view.parts.settings.schedule_groups:
        entries = await _with(view, group, lambda of: of.list_entries())
        shown = [one for one in entries if view.access.allows(Action.VIEW, one.entry.stream)]
        names = {one.entry.name for one in shown}
        runs = await _with(view, group, lambda of: of.next_runs(_RUNS))
        groups.append((group, shown[:500], [one for one in runs if one.name in names]))
    return {"groups": groups, "when": when_text}


async def _act(view: View, form: Form) -> Result:
    group, name = form.text("group"), form.text("name")
    if group not in view.parts.settings.schedule_groups:
        raise ConfigurationError("this group is not one of the dashboard's")
    entries = await _with(view, group, lambda of: of.list_entries())
    if not any(one.entry.name == name and one.entry.stream == form.text("stream") for one in entries):
        raise ConfigurationError("there is no such entry on this stream")
    shown = printable(name)
    match form.text("do"):
        case "pause":
            changed = await _with(view, group, lambda of: of.pause(name))
            return Result(f"{shown} {'is paused' if changed else 'was paused already'}", "/schedules")
        case "resume":
            changed = await _with(view, group, lambda of: of.resume(name))
            return Result(f"{shown} {'continues' if changed else 'was not paused'}", "/schedules")
        case "run":
            emitted = await view.parts.servers.redis_async(lambda client: run_schedule_now(client, group, name))
            return Result(f"{shown} was emitted once as message {printable(emitted)}", "/schedules")
        case _:
            raise ConfigurationError("the form names no action")


PAGES = (Page("/schedules", "schedules", "schedules.html", schedules),)
ACTIONS = (ActionRoute("/schedules/act", lambda _: Action.SCHEDULE, named_stream, _act),)
