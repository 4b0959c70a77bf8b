"""The dashboard: see what runs, one message's life, and repair it. Server-rendered, live, read-only by default.

    app             dashboard(...): an ASGI application, alone or mounted in another
    security        what every request passes: host, access, read-only, origin
    access          Action and Access: who may do what, on which streams
    servers         asks Redis, the database and RabbitMQ through ``management``, with time limits
    fleet           one reading of all streams for all viewers
    pages/          one module per page: what it shows, and its actions
    live            server-sent events: the changing part of a page, rendered again
    runs            carries bulk runs out, also those of a dashboard that died

Only ``management`` is used: whatever the dashboard can do, a program and the command line can do as well.

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
