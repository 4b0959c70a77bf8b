"""Execute posted actions, after one check of form token, right and stream.

The order is fixed here for all actions: check the form's token, check the right, record the action in the audit stream,
execute it, record its result. An action that cannot be recorded is not executed.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import RedirectResponse, Response

from conquiet.core.log import FactLogger
from conquiet.dashboard.access import Action
from conquiet.dashboard.forms import Form, read_form
from conquiet.dashboard.security import root_of
from conquiet.dashboard.servers import DashboardServerError
from conquiet.dashboard.views import NotShownError, View
from conquiet.errors import ConquietError
from conquiet.management.audit import record_action

logger = FactLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of an action in one sentence, and the page to redirect to."""

    text: str
    path: str


@dataclass(frozen=True, slots=True)
class ActionRoute:
    """An action that can be posted.

    Attributes:
        path: Path of the POST request.
        needs: Returns the right that the form requires.
        target: Returns the stream or other object that the right must cover and the audit names.
        run: Executes the action.
    """

    path: str
    needs: Callable[[Form], Action]
    target: Callable[[Form], str]
    run: Callable[[View, Form], Awaitable[Result]]


def named_stream(form: Form) -> str:
    """Return the stream of a form."""
    return form.text("stream")


def one_of(*allowed: Action) -> Callable[[Form], Action]:
    """Return a function that reads the right that a form requires from its field ``do``."""

    def read(form: Form) -> Action:
        action = Action(form.text("do"))
        if action not in allowed:
            raise ValueError(action)
        return action

    return read


async def execute(route: ActionRoute, view: View) -> Response:
    """Check a posted form, execute its action, and redirect to the page that shows the result."""
    request, parts = view.request, view.parts
    form = await read_form(request)
    if not parts.forms.is_valid(request, view.access.user, form.text("csrf")):
        return parts.renderer.message(
            view,
            "This form has expired",
            "Nothing was changed. Go back, reload the page and send it again.",
            status=403,
        )
    try:
        action, target = route.needs(form), route.target(form)
    except (ValueError, ConquietError):
        return parts.renderer.message(view, "This form cannot be read", "Nothing was changed.", status=400)
    if not view.access.allows(action, target):
        return parts.renderer.message(
            view, "You may not do this", f"The right {action.value} is missing. Nothing was changed.", status=403
        )
    client = request.client.host if request.client else ""
    try:
        facts = {"user": view.access.user, "action": action.value, "target": target, "client": client}
        # The field ``data`` holds a payload, which is never recorded.
        detail = " ".join(f"{name}={value}" for name, value in form.pairs if name not in {"csrf", "data"})[:300]
        audit_id = await parts.servers.redis(lambda admin: record_action(admin, detail=detail, **facts))
        request.state.audit_id = audit_id
        try:
            result = await route.run(view, form)
        except (ConquietError, NotShownError) as error:
            failure = f"failed: {type(error).__name__}"
            await parts.servers.redis(lambda admin: record_action(admin, detail=failure, of=audit_id, **facts))
            return parts.renderer.message(view, "This was not done", str(error), status=409)
        await parts.servers.redis(lambda admin: record_action(admin, detail=result.text, of=audit_id, **facts))
    except DashboardServerError as error:
        return parts.renderer.message(view, f"{error.server} is unavailable", str(error), status=503)
    logger.info(
        "dashboard action %(action)s on %(target)s by %(user)s: %(result)s",
        action=action.value,
        target=target,
        user=view.access.user,
        result=result.text,
    )
    joiner = "&" if "?" in result.path else "?"
    where = f"{root_of(request)}{result.path}{joiner}flash={parts.flashes.add(result.text)}"
    return RedirectResponse(where, 303)
