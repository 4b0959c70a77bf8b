"""The RabbitMQ pages: queues, consumers, unacknowledged messages; peek, replay and discard dead-letter queues.

Bodies are never shown, because they may be personal data. Listing a dead-letter queue reads its messages and returns
them, which marks them as redelivered. It is therefore an action with a separate right.
"""

from typing import Any, Final
from urllib.parse import urlencode

from conquiet.core.redaction import printable
from conquiet.dashboard.access import Action
from conquiet.dashboard.actions import ActionRoute, Result
from conquiet.dashboard.forms import Form
from conquiet.dashboard.views import NotShownError, Page, Values, View
from conquiet.errors import ConfigurationError
from conquiet.management.rabbit_queues import select_deliveries

_LOOK: Final = 50
_MOST: Final = 1_000
_LIMIT_S: Final = 60.0


def _require_rabbit(view: View) -> None:
    if not view.access.allows(Action.VIEW):
        raise ConfigurationError("RabbitMQ belongs to no stream: your right to look is limited to streams")
    if not view.parts.settings.rabbit_url:
        raise ConfigurationError("no RabbitMQ is configured: give rabbit_url= (--rabbit-url)")


async def rabbit(view: View) -> Values:
    """Return one page of queues."""
    _require_rabbit(view)
    name, page = view.text("q"), view.number("page", 1)
    found = await view.parts.servers.rabbit(lambda one: one.list_queues(page=page, name=name))
    return {"listed": found, "q": name, "looked": view.parts.peeks.get(view.text("look"))}


async def queue_history(view: View) -> Values:
    """Return the last hour of one queue: depth and rates, sampled by the broker."""
    _require_rabbit(view)
    name = view.text("queue")
    found = await view.parts.servers.rabbit(lambda one: one.history(name)) if name else None
    if found is None:
        raise NotShownError("There is no such queue.")
    return {"history": found}


async def _peek(view: View, form: Form) -> Result:
    queue = form.text("queue")
    found = await view.parts.servers.rabbit_async(
        lambda one: one.dead_letters(queue).list(limit=_LOOK), limit_s=_LIMIT_S
    )
    rows: list[dict[str, Any]] = [
        {name: getattr(one, name) for name in ("position", "message_id", "source", "reason", "count", "size_bytes")}
        for one in found
    ]
    key = view.parts.peeks.add({"queue": queue, "rows": rows})
    return Result(f"read {len(rows)} messages of {printable(queue)}", "/rabbit?" + urlencode({"look": key}))


async def _move(view: View, form: Form) -> Result:
    queue, message_id, source = form.text("queue"), form.text("message_id"), form.text("source")
    dry_run, do = form.text("dry") == "1", form.text("do")

    def selected() -> Any:
        return select_deliveries(message_id=message_id, source=source)

    if do == "replay":
        report = await view.parts.servers.rabbit_async(
            lambda one: one.dead_letters(queue).replay(selected(), limit=_MOST, dry_run=dry_run), limit_s=_LIMIT_S
        )
        said = f"{report.matched} would be replayed" if dry_run else f"{report.replayed} of {report.matched} replayed"
        return Result(f"{printable(queue)}: {said}; {report.unreplayable} stay", "/rabbit")
    done = await view.parts.servers.rabbit_async(
        lambda one: one.dead_letters(queue).discard(selected(), limit=_MOST, dry_run=dry_run), limit_s=_LIMIT_S
    )
    return Result(f"{printable(queue)}: {done} {'would be ' if dry_run else ''}discarded", "/rabbit")


def _right(form: Form) -> Action:
    return {"replay": Action.REPLAY, "discard": Action.DISCARD}[form.text("do")]


def _queue(form: Form) -> str:
    return form.text("queue")


PAGES = (
    Page("/rabbit", "rabbit", "rabbit.html", rabbit, interval_s=5.0),
    Page("/rabbit/queue", "rabbit", "rabbit_queue.html", queue_history, interval_s=10.0),
)
ACTIONS = (
    ActionRoute("/rabbit/peek", lambda _: Action.PEEK, _queue, _peek),
    ActionRoute("/rabbit/act", _right, _queue, _move),
)
