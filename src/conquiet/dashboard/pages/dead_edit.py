"""Edit the data of a dead letter and retry it. Needs the right ``edit``; shows only redacted data."""

import json
from typing import Any, Final
from urllib.parse import urlencode

from conquiet.core.redaction import printable
from conquiet.dashboard.access import Action
from conquiet.dashboard.actions import ActionRoute, Result
from conquiet.dashboard.forms import Form
from conquiet.dashboard.redaction import HiddenValueError, restore
from conquiet.dashboard.views import NotShownError, View
from conquiet.errors import ConfigurationError
from conquiet.management.dead_letter_pages import DeadMessage, show_dead_letter, stream_of_token
from conquiet.management.jobs.control import JobChange
from conquiet.management.jobs.partitioned import PartitionedJobs

_MOST_EDITED: Final = 60_000


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
    report = await view.parts.servers.redis_async(
        lambda client: PartitionedJobs(client, key.decode()).edit_and_retry(dead_id, data)
    )
    done = report.change is JobChange.MOVED
    said = "is retried with the new data" if done else f"was not retried: {report.change.value}"
    path = "/message?" + urlencode({"stream": stream, "id": report.id})
    return Result(f"message {printable(report.id)} of {printable(stream)} {said}", path)


PAGES = ()
ACTIONS = (ActionRoute("/dead/edit", lambda _: Action.EDIT, lambda form: form.text("stream"), _edit),)
