"""The pages of dead letters: causes, the newest ones, one in full; replay, discard, edit and retry them.

An edit needs the right ``edit`` and shows only redacted data.
"""

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from conquiet.core.redaction import printable
from conquiet.dashboard.access import Action
from conquiet.dashboard.actions import ActionRoute, Result, named_stream, one_of
from conquiet.dashboard.forms import Form
from conquiet.dashboard.pages.overview import visible
from conquiet.dashboard.redaction import HiddenValueError, restore
from conquiet.dashboard.views import NotShownError, Page, Values, View, link
from conquiet.errors import ConfigurationError
from conquiet.management.bulk_runs import BulkRun, RunAction
from conquiet.management.dead_letter_pages import (
    MOST_SAMPLED,
    SAMPLE,
    DeadFilter,
    DeadMessage,
    dead_id_in,
    list_newest,
    sample_causes,
    show_dead_letter,
    stream_of_token,
)
from conquiet.management.jobs.admin import JobAdmin
from conquiet.management.jobs.control import JobChange
from conquiet.management.redis_admin import RedisAdmin, utf8_name

T = TypeVar("T")

_ROWS: Final = 50
_BARS: Final = 30
_CAUSES: Final = 50
_MOST_EDITED: Final = 60_000
_PAST: Final = {RunAction.REPLAY: "replayed", RunAction.DISCARD: "discarded"}


@dataclass(frozen=True, slots=True)
class Revealed:
    """A redacted payload; ``text`` is empty if it may not be shown."""

    text: str
    why: str


def reveal(view: View, stream: str, event: str, payload: Any) -> Revealed:
    """Return the redacted payload, if the settings and the user's rights allow it."""
    settings = view.parts.settings
    if not settings.reveal:
        return Revealed("", "Payloads are not shown: this dashboard runs without reveal=True (--reveal).")
    if not view.access.allows(Action.REVEAL, stream):
        return Revealed("", "Payloads are not shown: you have no right to reveal them.")
    shown = settings.redact(stream, event, payload)
    return Revealed(json.dumps(shown, indent=2, ensure_ascii=False, default=str)[:100_000], "")


def filter_of(source: Any) -> DeadFilter:
    """Return the filter of a query or a form."""
    hours = source.text("hours")
    since = None
    if hours:
        if not hours.isdecimal() or len(hours) > 5:  # noqa: PLR2004
            raise ConfigurationError("the age must be a whole number of hours")
        since = int(time.time() * 1000) - int(hours) * 3_600_000
    return DeadFilter(
        id=source.text("id") or None,
        event=source.text("event") or None,
        group=source.text("group") or None,
        error_type=source.text("error") or None,
        since_ms=since,
    )


def filter_fields(source: Any) -> dict[str, str]:
    """Return the fields of the filter that are set."""
    return {name: source.text(name) for name in ("id", "event", "error", "group", "hours") if source.text(name)}


async def dead(view: View) -> Values:
    """Return the streams with dead letters, or the dead letters of one stream."""
    if not view.text("stream"):
        fleet = await view.parts.fleet.streams()
        dying = [one for one in visible(view, fleet) if one.dead]
        return {"token": "", "streams": sorted(dying, key=lambda one: -one.dead)[:200], "filters": {}}
    key, where = view.stream(), filter_of(view)
    before, causes_before = (dead_id_in(view.text(name)) for name in ("before", "causes_before"))
    sample = min(MOST_SAMPLED, max(SAMPLE, view.number("sample", SAMPLE)))

    def read(admin: RedisAdmin) -> Values:
        page = list_newest(admin, key, where=where, limit=_ROWS, before=before)
        causes = sample_causes(admin, key, sample=sample, before=causes_before)
        return {"listed": page, "causes": causes, "shown_causes": causes.causes[:_CAUSES], "now": admin.now_ms()}

    found = await view.parts.servers.redis(read)
    return found | {
        "token": view.text("stream"),
        "filters": filter_fields(view),
        "sample": sample,
        "most_sampled": MOST_SAMPLED,
        "causes_before": causes_before,
        "bars": {(one.event, one.cause): _histogram(one.times_ms, found["now"]) for one in found["shown_causes"]},
        "streams": [],
    }


def _histogram(times_ms: tuple[int, ...], now_ms: int) -> list[int]:
    """Return the number of dead letters in each interval since the first of them."""
    first = min(times_ms)
    width = max(1, (now_ms - first) // _BARS + 1)
    counts = [0] * _BARS
    for one in times_ms:
        counts[min(_BARS - 1, max(0, (one - first) // width))] += 1
    return counts


async def dead_letter(view: View) -> Values:
    """Return one dead letter with its history."""
    key, dead_id = view.stream(), view.text("id")
    if dead_id_in(dead_id) is None:
        raise NotShownError("A dead letter's id looks like 1763244000000-0.")
    found: DeadMessage | None = await view.parts.servers.redis(lambda admin: show_dead_letter(admin, key, dead_id))
    if found is None:
        raise NotShownError("This dead letter is gone: it was replayed, discarded, or removed by its retention.")
    shown = reveal(view, view.text("stream"), found.record.event, found.record.payload or found.record.raw)
    return {
        "dead": found,
        "record": found.record,
        "token": view.text("stream"),
        "revealed": shown,
        "editable": editable_data(view, view.text("stream"), found),
    }


async def _act(view: View, form: Form) -> Result:
    """Replay or discard the selected dead letters, or create a run for all that match."""
    action, stream = RunAction(form.text("do")), form.text("stream")
    path = link("/dead", stream=stream, **filter_fields(form))
    ids = form.texts("id")
    if form.text("scope") == "all":
        return await start_run(
            view,
            form,
            lambda runs, **facts: runs.create(action=action, stream=text_name(stream), where=filter_of(form), **facts),
        )
    if not ids:
        raise ConfigurationError("select at least one dead letter, or choose all that match")
    done = await view.parts.runs.query(lambda runs: runs.act_on(action, text_name(stream), ids[:1_000]))
    return Result(f"{done} of {len(ids)} dead letters of {printable(stream)} {_PAST[action]}", path)


async def start_run(view: View, form: Form, create: Callable[..., Awaitable[BulkRun]]) -> Result:
    """Create a bulk run by ``create(runs, user=…, rate_per_s=…, audit_id=…)`` and start its count."""
    rate = form.text("rate") or "0"
    if not rate.isdecimal():
        raise ConfigurationError("the rate must be a whole number of messages per second")
    facts = {"user": view.access.user, "audit_id": getattr(view.request.state, "audit_id", "")}
    run = await view.parts.runs.query(lambda runs: create(runs, rate_per_s=float(rate), **facts))
    view.parts.runs.start(run.id)
    what = f"counting what {run.action.value} would take; nothing is changed before you confirm"
    return Result(what, f"/run?id={run.id}")


async def with_jobs(
    view: View, stream: str, work: Callable[[JobAdmin], Awaitable[T]], *, group: str | None = None
) -> T:
    """Return ``await work(jobs)`` with the jobs of a stream."""
    return await view.parts.servers.redis_async(lambda client: work(JobAdmin(client, stream, group=group)))


def text_name(token: str) -> str:
    """Return the name of the stream of a token; raise if it is not UTF-8."""
    name = utf8_name(stream_of_token(token))
    if name is None:
        raise ConfigurationError("a stream whose name is not UTF-8 cannot be changed here")
    return name


def editable_data(view: View, stream: str, dead: DeadMessage) -> str:
    """Return the redacted data of a dead letter for editing; empty if it may not be shown."""
    data = _data_of(dead)
    if data is None or not dead.record.replayable or not _may_edit(view, stream):
        return ""
    shown = view.parts.settings.redact(stream, dead.record.event, data)
    text = json.dumps(shown, indent=2, ensure_ascii=False, default=str)
    return text if len(text) <= _MOST_EDITED else ""


def _may_edit(view: View, stream: str) -> bool:
    allows = view.access.allows
    return view.parts.settings.reveal and allows(Action.REVEAL, stream) and allows(Action.EDIT, stream)


def _data_of(dead: DeadMessage) -> dict[str, Any] | None:
    data = None if dead.record.payload is None else dead.record.payload.get("data")
    return data if isinstance(data, dict) else None


async def _edit(view: View, form: Form) -> Result:
    """Retry a dead letter with other data. Values that the user may not see are kept."""
    stream, dead_id = form.text("stream"), form.text("id")
    key = stream_of_token(stream)
    if not _may_edit(view, stream):
        raise ConfigurationError("data that you may not see cannot be edited: it is not revealed to you")
    found: DeadMessage | None = await view.parts.servers.redis(lambda admin: show_dead_letter(admin, key, dead_id))
    original = None if found is None else _data_of(found)
    if found is None or original is None:
        raise NotShownError("This dead letter is gone, or has no data that could be edited.")
    shown = json.loads(json.dumps(view.parts.settings.redact(stream, found.record.event, original), default=str))
    try:
        data = restore(original, shown, json.loads(form.whole("data")))
    except HiddenValueError:
        raise ConfigurationError("a list with masked values keeps its length: nothing was changed") from None
    except ValueError:
        raise ConfigurationError("the data is not JSON: nothing was changed") from None
    if not isinstance(data, dict):
        raise ConfigurationError("the data must be a JSON object: nothing was changed")
    report = await with_jobs(view, key.decode(), lambda jobs: jobs.edit_and_retry(dead_id, data))
    done = report.change is JobChange.MOVED
    said = "is retried with the new data" if done else f"was not retried: {report.change.value}"
    path = link("/message", stream=stream, id=report.id)
    return Result(f"message {printable(report.id)} of {printable(stream)} {said}", path)


PAGES = (
    Page("/dead", "dead", "dead.html", dead, interval_s=2.0),
    Page("/dead/show", "dead", "dead_letter.html", dead_letter, live=False),
)
ACTIONS = (
    ActionRoute("/dead/act", one_of(Action.REPLAY, Action.DISCARD), named_stream, _act),
    ActionRoute("/dead/edit", lambda _: Action.EDIT, named_stream, _edit),
)
