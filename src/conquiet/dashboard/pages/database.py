"""The database page: inbox size, outbox backlog per target, parked rows, lock waits; unpark rows."""

from collections.abc import Callable
from typing import Any

from conquiet.core.redaction import printable
from conquiet.dashboard.access import Action
from conquiet.dashboard.actions import ActionRoute, Result
from conquiet.dashboard.forms import Form
from conquiet.dashboard.views import Page, Values, View
from conquiet.errors import ConfigurationError, ConquietError
from conquiet.management.database_view import DatabaseView


async def database(view: View) -> Values:
    """Return the state of each table; a missing table is reported."""
    if not view.access.allows(Action.VIEW):
        raise ConfigurationError("the database belongs to no stream: your right to look is limited to streams")
    if not view.parts.settings.db_url:
        raise ConfigurationError("no database is configured: give db_url= (--db-url)")
    inbox, inbox_problem = await _part(view, lambda one: one.inbox(most_rows=100_000))
    backlog, outbox_problem = await _part(view, lambda one: one.backlog())
    parked, _ = await _part(view, lambda one: one.parked(limit=100))
    waits, waits_problem = await _part(view, lambda one: one.lock_waits())
    growth = view.parts.inbox_growth.record(inbox.rows, complete=inbox.complete) if inbox is not None else None
    return {
        "inbox": inbox,
        "growth": growth,
        "inbox_problem": inbox_problem,
        "backlog": backlog,
        "outbox_problem": outbox_problem,
        "parked": parked or [],
        "waits": waits or [],
        "waits_problem": waits_problem,
        "tables": view.parts.settings,
    }


async def _part(view: View, work: Callable[[DatabaseView], Any]) -> tuple[Any, str]:
    try:
        return await view.parts.servers.database(work), ""
    except ConquietError as error:
        return None, str(error)


async def _unpark(view: View, form: Form) -> Result:
    target, seqs = form.text("target"), form.texts("seq")
    if target:
        done = await view.parts.servers.database(lambda one: one.unpark_all(target=target))
        return Result(f"{done} rows of {printable(target)} go to the relay again", "/database")
    numbers = [int(one) for one in seqs if one.isdecimal()]
    if not numbers:
        raise ConfigurationError("select at least one parked row")
    done = await view.parts.servers.database(lambda one: one.unpark(numbers))
    return Result(f"{done} of {len(numbers)} rows go to the relay again", "/database")


PAGES = (Page("/database", "database", "database.html", database, interval_s=5.0),)
ACTIONS = (ActionRoute("/database/unpark", lambda _: Action.UNPARK, lambda _: "(outbox)", _unpark),)
