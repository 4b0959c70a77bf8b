"""The audit page: users, actions and results."""

from conquiet.dashboard.access import Action
from conquiet.dashboard.views import Page, Values, View
from conquiet.errors import ConfigurationError
from conquiet.management.audit import list_actions
from conquiet.management.redis_admin import entry_id_in


async def audit(view: View) -> Values:
    """Return the newest actions."""
    if not view.access.allows(Action.VIEW):
        raise ConfigurationError("the audit belongs to all streams: your right to look is limited to some")
    before = entry_id_in(view.text("before"))
    entries = await view.parts.servers.redis(lambda admin: list_actions(admin, before=before))
    return {"entries": entries}


PAGES = (Page("/audit", "audit", "audit.html", audit, interval_s=2.0),)
