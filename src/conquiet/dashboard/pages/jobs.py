"""The pages of jobs by phase and of one message; cancel or run one job, selected ones, or all that match."""

from collections import Counter
from functools import partial
from typing import Any, Final

from conquiet.core.redaction import printable
from conquiet.dashboard.access import Action
from conquiet.dashboard.actions import ActionRoute, Result, named_stream, one_of
from conquiet.dashboard.forms import Form
from conquiet.dashboard.pages.dead import reveal, start_run, text_name, with_jobs
from conquiet.dashboard.pages.overview import visible
from conquiet.dashboard.servers import DashboardServerError
from conquiet.dashboard.views import NotShownError, Page, Values, View, link
from conquiet.errors import ConfigurationError, ConquietError
from conquiet.management.bulk_runs import RunAction
from conquiet.management.jobs.admin import JobAdmin
from conquiet.management.jobs.control import ChangeReport
from conquiet.management.jobs.models import LISTED, JobFilter, JobHistory, JobPhase

_ROWS: Final = 50
_STREAMS: Final = 200
_MOST_SELECTED: Final = 200
_CANCEL_WAIT_S: Final = 2.0
_FIELDS: Final = ("event", "id", "key", "error", "older", "group", "phase")


def phase_of(source: Any) -> JobPhase:
    """Return the phase of a query or a form; by default WAITING."""
    given = source.text("phase", JobPhase.WAITING.value)
    return JobPhase(given) if given in {one.value for one in LISTED} else JobPhase.WAITING


def filter_of(source: Any) -> JobFilter:
    """Return the filter of a query or a form."""
    older = source.text("older")
    if older and (not older.isdecimal() or len(older) > 9):  # noqa: PLR2004
        raise ConfigurationError("the age must be a whole number of seconds")
    return JobFilter(
        event=source.text("event") or None,
        id=source.text("id") or None,
        key=source.text("key") or None,
        error=source.text("error") or None,
        min_age_s=float(older) if older else None,
    )


def fields_of(source: Any) -> dict[str, str]:
    """Return the fields of the filter that are set."""
    return {name: source.text(name) for name in _FIELDS if source.text(name)}


async def jobs(view: View) -> Values:
    """Return the streams, or one page of the jobs of one stream."""
    if not view.text("stream"):
        fleet = await view.parts.fleet.streams()
        shown = visible(view, fleet)[:_STREAMS]
        return {"token": "", "streams": shown, "filters": {}, "retrying": await view.parts.fleet.retrying(shown)}
    view.stream()  # the user may see it
    name, phase, where = text_name(view.text("stream")), phase_of(view), filter_of(view)
    cursor, group = view.text("cursor") or None, view.text("group") or None
    listed = await with_jobs(view, name, lambda jobs: jobs.list(phase, where, cursor=cursor, limit=_ROWS), group=group)
    return {
        "token": view.text("stream"),
        "streams": [],
        "listed": listed,
        "phase": phase,
        "phases": LISTED,
        "filters": fields_of(view),
    }


async def message(view: View) -> Values:
    """Return the history of one message: emission, attempts, effect, and messages that it caused."""
    view.stream()
    name, job_id = text_name(view.text("stream")), view.text("id")
    if not job_id:
        raise NotShownError("No message is named.")
    with_data = view.parts.settings.reveal and view.access.allows(Action.REVEAL, view.text("stream"))
    history = await with_jobs(view, name, lambda jobs: jobs.show(job_id, with_data=with_data))
    data = next((place.data for place in history.places if place.data is not None), None)
    effect, effect_problem = await _effect(view, name, history)
    return {
        "token": view.text("stream"),
        "history": history,
        "event": history.event,
        "effect": effect,
        "effect_problem": effect_problem,
        "revealed": reveal(view, view.text("stream"), history.event, data) if data is not None else None,
        "may_reveal": with_data,
        "linked": await _linked(view, history),
    }


async def _linked(view: View, history: JobHistory) -> dict[str, str]:
    """Return the streams of related messages that the user may see, by the place in the message.

    The target of an outbox is linked if it is named like a stream, as the targets of an ``App`` are.
    """
    related = [*history.caused, *([] if history.caused_by is None else [history.caused_by])]
    if not related:
        return {}
    streams = {one.key for one in visible(view, await view.parts.fleet.streams())}
    return {one.place: one.place for one in related if one.place in streams}


async def _effect(view: View, stream: str, history: JobHistory) -> tuple[bool | None, str]:
    """Return whether the inbox has a row of the message; None without a database."""
    if not view.parts.settings.db_url or not view.access.allows(Action.VIEW):
        return None, ""
    groups = sorted({place.group for place in history.places if place.group}) or [
        group.name for one in (await view.parts.fleet.streams()).streams if one.key == stream for group in one.groups
    ]
    try:
        found = [
            await view.parts.servers.database(lambda one, group=group: one.has_effect(stream, group, history.id))  # type: ignore[misc]
            for group in groups[:5]
        ]
    except (ConquietError, DashboardServerError) as error:
        return None, str(error)
    return any(found), ""


async def _act(view: View, form: Form) -> Result:
    action, stream = RunAction(form.text("do")), form.text("stream")
    name, group = text_name(stream), form.text("group") or None
    if form.text("scope") == "all":
        return await start_run(
            view,
            form,
            lambda runs, **facts: runs.create(
                action=action, stream=name, group=group or "", phase=phase_of(form), where=filter_of(form), **facts
            ),
        )
    ids = form.texts("job")[:_MOST_SELECTED]
    if not ids:
        raise ConfigurationError("select at least one job, or choose all that match")

    async def change(jobs: JobAdmin, job_id: str) -> ChangeReport:
        if action is RunAction.CANCEL:
            return await jobs.cancel(job_id, timeout_s=_CANCEL_WAIT_S)
        return await jobs.run_now(job_id)

    reports = [await with_jobs(view, name, partial(change, job_id=job_id), group=group) for job_id in ids]
    found = Counter(report.change.value for report in reports)
    changes = ", ".join(f"{number} {change}" for change, number in sorted(found.items()))
    fields = {key: value for key, value in fields_of(form).items() if key != "id"}
    back = link("/jobs", stream=stream, **fields)
    path = link("/message", stream=stream, id=ids[0]) if form.text("from") == "message" else back
    return Result(f"{printable(stream)}: {changes}", path)


PAGES = (
    Page("/jobs", "jobs", "jobs.html", jobs, interval_s=2.0),
    Page("/message", "jobs", "message.html", message, interval_s=2.0),
)
ACTIONS = (ActionRoute("/jobs/act", one_of(Action.CANCEL, Action.RUN_NOW), named_stream, _act),)
