"""What changes something: one function per action, behind one check of form, right and stream.

The order is fixed here and not in the actions: the form's token, the right, the record in the audit stream, the action,
the record of its result. An action that cannot be recorded is not carried out.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from conquiet.core.log import FactLogger
from conquiet.dashboard.access import Action
from conquiet.dashboard.forms import Form, read_form
from conquiet.dashboard.security import root_of
from conquiet.dashboard.servers import ServerAwayError
from conquiet.dashboard.views import NotShownError, View
from conquiet.errors import ConquietError
from conquiet.management.audit import record_action

if TYPE_CHECKING:
    from conquiet.dashboard.app import Parts

logger = FactLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """What an action did, in one sentence, and the page to go to."""

    text: str
    path: str


@dataclass(frozen=True, slots=True)
class ActionRoute:
    """An action that can be posted.

    Attributes:
        path: Where.
        needs: The rights that allow it: one of the form's, or a fixed one.
        target: Returns the stream (or other thing) that the right must cover and the audit names.
        run: Carries it out.
    """

    path: str
    needs: Callable[[Form], Action]
    target: Callable[[Form], str]
    run: Callable[[View, Form], Awaitable[Result]]


async def carry_out(route: ActionRoute, request: Request, parts: "Parts") -> Response:
    """Check a posted form, carry its action out, and go to the page that shows the result."""
    view = View(request, request.scope["conquiet.access"], parts)
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
        said = {"user": view.access.user, "action": action.value, "target": target, "client": client}
        # What is posted as data is payload: it is not recorded.
        detail = " ".join(f"{name}={value}" for name, value in form.pairs if name not in {"csrf", "data"})[:300]
        audit_id = await parts.servers.redis(lambda admin: record_action(admin, detail=detail, **said))
        request.state.audit_id = audit_id
        try:
            result = await route.run(view, form)
        except (ConquietError, NotShownError) as error:
            failure = f"failed: {type(error).__name__}"
            await parts.servers.redis(lambda admin: record_action(admin, detail=failure, of=audit_id, **said))
            return parts.renderer.message(view, "This was not done", str(error), status=409)
        await parts.servers.redis(lambda admin: record_action(admin, detail=result.text, of=audit_id, **said))
    except ServerAwayError as error:
        return parts.renderer.message(view, f"{error.server} is away", str(error), status=503)
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
