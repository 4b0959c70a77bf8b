"""The RabbitMQ pages: queues, consumers, unacknowledged messages; peek, replay and discard dead-letter queues.

Bodies are never shown, because they may be personal data. Listing a dead-letter queue reads its messages and returns
them, which marks them as redelivered. It is therefore an action with a separate right.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from conquiet.core.redaction import printable
from conquiet.dashboard.access import Action
from conquiet.dashboard.actions import ActionRoute, Result, one_of
from conquiet.dashboard.forms import Form
from conquiet.dashboard.views import NotShownError, Page, Values, View, link
from conquiet.errors import ConfigurationError
from conquiet.management.rabbit_queues import select_deliveries

T = TypeVar("T")

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


async def _with_dead_letters(view: View, queue: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Return ``await work(dead_letters)`` with the messages of a dead-letter queue."""
    return await view.parts.servers.rabbit_async(lambda one: work(one.dead_letters(queue)), limit_s=_LIMIT_S)


async def _peek(view: View, form: Form) -> Result:
    queue = form.text("queue")
    found = await _with_dead_letters(view, queue, lambda dead: dead.list(limit=_LOOK))
    rows: list[dict[str, Any]] = [
        {name: getattr(one, name) for name in ("position", "message_id", "source", "reason", "count", "size_bytes")}
        for one in found
    ]
    key = view.parts.peeks.add({"queue": queue, "rows": rows})
    return Result(f"read {len(rows)} messages of {printable(queue)}", link("/rabbit", look=key))


async def _move(view: View, form: Form) -> Result:
    queue, dry_run, replay = form.text("queue"), form.text("dry") == "1", form.text("do") == "replay"

    def move(dead: Any) -> Awaitable[Any]:
        where = select_deliveries(message_id=form.text("message_id"), source=form.text("source"))
        change = dead.replay if replay else dead.discard
        return change(where, limit=_MOST, dry_run=dry_run)  # type: ignore[no-any-return]

    done = await _with_dead_letters(view, queue, move)
    if not replay:
        return Result(f"{printable(queue)}: {done} {'would be ' if dry_run else ''}discarded", "/rabbit")
    said = f"{done.matched} would be replayed" if dry_run else f"{done.replayed} of {done.matched} replayed"
    return Result(f"{printable(queue)}: {said}; {done.unreplayable} stay", "/rabbit")


PAGES = (
    Page("/rabbit", "rabbit", "rabbit.html", rabbit, interval_s=5.0),
    Page("/rabbit/queue", "rabbit", "rabbit_queue.html", queue_history, interval_s=10.0),
)
ACTIONS = (
    ActionRoute("/rabbit/peek", lambda _: Action.PEEK, lambda form: form.text("queue"), _peek),
    ActionRoute("/rabbit/act", one_of(Action.REPLAY, Action.DISCARD), lambda form: form.text("queue"), _move),
)
