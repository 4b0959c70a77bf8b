"""The dashboard: inspect streams, jobs and messages, and repair them. Server-rendered, live, read-only by default.

    app             dashboard(...): an ASGI application, alone or mounted in another
    security        checks of every request: host, access, read-only, origin
    access          Action and Access: the rights of a user, per stream
    servers         queries Redis, the database and RabbitMQ through ``management``, with time limits
    fleet           one reading of all streams for all viewers
    pages/          one module per page, with its values and actions
    live            server-sent events: the changing part of a page, rendered again
    runs            executes bulk runs, including abandoned ones of other dashboards

The dashboard uses only ``management``, so programs and the command line can do the same.

See docs/decisions/0053.
"""

from conquiet.core.constructor_help import describe_constructors
from conquiet.core.extras import require_extra

require_extra("dashboard", "starlette", "jinja2", "redis", "hiredis")

from conquiet.dashboard.access import EVERYTHING, READ_ONLY, Access, Action  # noqa: E402 - extra first
from conquiet.dashboard.app import Dashboard, dashboard  # noqa: E402
from conquiet.dashboard.redaction import redact_secrets  # noqa: E402
from conquiet.dashboard.settings import DashboardSettings  # noqa: E402

__all__ = [
    "EVERYTHING",
    "READ_ONLY",
    "Access",
    "Action",
    "Dashboard",
    "DashboardSettings",
    "dashboard",
    "redact_secrets",
]

describe_constructors(globals())
