"""The pages of bulk runs: their counts and progress; confirm and cancel them."""

from conquiet.dashboard.access import Action
from conquiet.dashboard.actions import ActionRoute, Result, named_stream, one_of
from conquiet.dashboard.forms import Form
from conquiet.dashboard.views import NotShownError, Page, Values, View
from conquiet.errors import ConfigurationError
from conquiet.management.bulk_runs import BulkRun


async def runs(view: View) -> Values:
    """Return the newest runs on streams that the user may see."""
    await view.parts.runs.adopt()
    found = await view.parts.runs.query(lambda runs: runs.newest())
    return {"runs": [run for run in found if view.access.allows(Action.VIEW, run.stream)]}


async def run(view: View) -> Values:
    """Return one run."""
    await view.parts.runs.adopt()
    found = await _find(view, view.text("id"))
    return {"run": found, "may_act": view.access.allows(Action(found.action.value), found.stream)}


async def _find(view: View, run_id: str) -> BulkRun:
    found = await view.parts.runs.query(lambda runs: runs.get(run_id))
    if found is None or not view.access.allows(Action.VIEW, found.stream):
        raise NotShownError("There is no such run any more.")
    return found


async def _confirm(view: View, form: Form) -> Result:
    found = await _checked(view, form)
    await view.parts.runs.query(lambda runs: runs.confirm(found.id))
    view.parts.runs.start(found.id)
    return Result(f"{found.action.value} of {found.matched} {found.subject} started", f"/run?id={found.id}")


async def _cancel(view: View, form: Form) -> Result:
    found = await _checked(view, form)
    await view.parts.runs.query(lambda runs: runs.cancel(found.id))
    return Result("cancelled; finished steps are not undone", f"/run?id={found.id}")


async def _checked(view: View, form: Form) -> BulkRun:
    found = await _find(view, form.text("id"))
    # The form names stream and action for the check of rights; they must match the run.
    if found.stream != form.text("stream") or found.action.value != form.text("do"):
        raise ConfigurationError("the form does not belong to this run")
    return found


_right = one_of(Action.REPLAY, Action.DISCARD, Action.CANCEL, Action.RUN_NOW)
PAGES = (
    Page("/runs", "runs", "runs.html", runs),
    Page("/run", "runs", "run.html", run, interval_s=0.5),
)
ACTIONS = (
    ActionRoute("/run/confirm", _right, named_stream, _confirm),
    ActionRoute("/run/cancel", _right, named_stream, _cancel),
)
