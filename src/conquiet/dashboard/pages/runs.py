"""The pages of bulk runs: their counts and progress; confirm and cancel them."""

from conquiet.dashboard.access import Action
from conquiet.dashboard.actions import ActionRoute, Result
from conquiet.dashboard.forms import Form
from conquiet.dashboard.views import NotShownError, Page, Values, View
from conquiet.errors import ConfigurationError
from conquiet.management.bulk_runs import BulkRun, RunAction

_RIGHTS = {
    RunAction.REPLAY: Action.REPLAY,
    RunAction.DISCARD: Action.DISCARD,
    RunAction.CANCEL: Action.CANCEL,
    RunAction.RUN_NOW: Action.RUN_NOW,
}


def may_act(view: View, run: BulkRun) -> bool:
    """Return whether the user could have started this run."""
    return view.access.allows(_RIGHTS[run.action], run.stream)


async def runs(view: View) -> Values:
    """Return the newest runs on streams that the user may see."""
    await view.parts.runs.adopt()
    found = await view.parts.servers.redis_async(lambda client: view.parts.runs.runs(client).newest())
    return {"runs": [run for run in found if view.access.allows(Action.VIEW, run.stream)]}


async def run(view: View) -> Values:
    """Return one run."""
    await view.parts.runs.adopt()
    found = await _find(view, view.text("id"))
    return {"run": found, "may_act": may_act(view, found)}


async def _find(view: View, run_id: str) -> BulkRun:
    found = await view.parts.servers.redis_async(lambda client: view.parts.runs.runs(client).get(run_id))
    if found is None or not view.access.allows(Action.VIEW, found.stream):
        raise NotShownError("There is no such run any more.")
    return found


async def _confirm(view: View, form: Form) -> Result:
    found = await _checked(view, form)
    await view.parts.servers.redis_async(lambda client: view.parts.runs.runs(client).confirm(found.id))
    view.parts.runs.start(found.id)
    return Result(f"{found.action.value} of {found.matched} {found.subject} started", f"/run?id={found.id}")


async def _cancel(view: View, form: Form) -> Result:
    found = await _checked(view, form)
    await view.parts.servers.redis_async(lambda client: view.parts.runs.runs(client).cancel(found.id))
    return Result("cancelled; finished steps are not undone", f"/run?id={found.id}")


async def _checked(view: View, form: Form) -> BulkRun:
    found = await _find(view, form.text("id"))
    # The form names stream and action for the check of rights; they must match the run.
    if found.stream != form.text("stream") or found.action.value != form.text("do"):
        raise ConfigurationError("the form does not belong to this run")
    return found


def _right(form: Form) -> Action:
    return _RIGHTS[RunAction(form.text("do"))]


PAGES = (
    Page("/runs", "runs", "runs.html", runs),
    Page("/run", "runs", "run.html", run, interval_s=0.5),
)
ACTIONS = (
    ActionRoute("/run/confirm", _right, lambda form: form.text("stream"), _confirm),
    ActionRoute("/run/cancel", _right, lambda form: form.text("stream"), _cancel),
)
