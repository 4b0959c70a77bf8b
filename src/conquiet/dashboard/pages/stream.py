"""The page of one stream: groups, consumers, pending entries, throughput and latency; pause and resume it."""

from collections.abc import Awaitable, Callable

from conquiet.core.redaction import printable
from conquiet.dashboard.access import Action
from conquiet.dashboard.actions import ActionRoute, Result, named_stream
from conquiet.dashboard.forms import Form
from conquiet.dashboard.views import NotShownError, Page, Values, View, link
from conquiet.errors import NoSuchStreamError
from conquiet.management.history import HistoryRange, quantile, read_history
from conquiet.management.overview import describe_stream
from conquiet.management.pauses import pause_stream, resume_stream
from conquiet.management.pending import PendingFilter, list_pending
from conquiet.management.redis_admin import RedisAdmin
from conquiet.management.workers import read_workers

_PENDING = 50


async def stream(view: View) -> Values:
    """Return everything about one stream."""
    key = view.stream()
    servers = view.parts.servers
    span = next((one for one in HistoryRange if one.value == view.text("span")), HistoryRange.HOUR)

    def read(admin: RedisAdmin) -> Values:
        report = describe_stream(admin, key)
        groups = [group.raw_name for group in report.groups]
        history = read_history(admin, key, groups, span)
        return {
            "report": report,
            "history": history,
            "consumers": read_workers(admin, [(key, group) for group in groups[:10]]),
        }

    try:
        found = await servers.redis(read)
    except NoSuchStreamError:
        raise NotShownError("There is no such stream.") from None
    found["consumers"] = await view.parts.fleet.connections.mark_disconnected(found["consumers"])
    fleet = await view.parts.fleet.streams()
    totals = [sum(one) for one in zip(*(point.handling for point in found["history"].points), strict=True)]
    return found | {
        "token": view.text("stream"),
        "span": span,
        "spans": list(HistoryRange),
        "snapshot": fleet.get(key),
        "flow": fleet.flow_of(key),
        "ok": sum(point.ok for point in found["history"].points),
        "failed": sum(point.failed for point in found["history"].points),
        "p50": quantile(totals, 0.5),
        "p95": quantile(totals, 0.95),
        "paused": found["report"].paused or (),
    }


async def pending(view: View) -> Values:
    """Return the entries that a group has in flight, with owner and idle time."""
    key = view.stream()
    group = view.text("group")
    consumer = view.text("consumer")
    where = PendingFilter(consumer=consumer, min_idle_s=view.number("idle", 0), limit=_PENDING)
    name = key.decode("utf-8", "replace")
    try:
        rows = await view.parts.servers.redis(lambda admin: list_pending(admin, name, group, where))
    except NoSuchStreamError:
        raise NotShownError("There is no such stream or group.") from None
    return {"rows": rows, "token": view.text("stream"), "group": group, "consumer": consumer, "limit": _PENDING}


async def _pause(view: View, form: Form) -> Result:
    return await _change(view, form, pause_stream, "is paused", "was paused already")


async def _resume(view: View, form: Form) -> Result:
    return await _change(view, form, resume_stream, "continues", "was not paused")


async def _change(view: View, form: Form, change: Callable[..., Awaitable[bool]], done: str, nothing: str) -> Result:
    name, event = form.text("stream"), form.text("event")
    changed = await view.parts.servers.redis_async(lambda client: change(client, name, event or None))
    what = f"event {printable(event)} of {printable(name)}" if event else f"stream {printable(name)}"
    return Result(f"{what} {done if changed else nothing}", link("/stream", stream=name))


PAGES = (
    Page("/stream", "overview", "stream.html", stream),
    Page("/pending", "overview", "pending.html", pending, interval_s=2.0),
)
ACTIONS = (
    ActionRoute("/stream/pause", lambda _: Action.PAUSE, named_stream, _pause),
    ActionRoute("/stream/resume", lambda _: Action.PAUSE, named_stream, _resume),
)
