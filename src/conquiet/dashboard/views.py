"""Render pages: templates, links, and the request data of pages and actions.

A page is a function that returns the values of its template. Its block ``live`` is rendered again for server-sent
events; the rest is sent once.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from conquiet._version import __version__
from conquiet.dashboard import charts, formatting
from conquiet.dashboard.access import Access, Action
from conquiet.dashboard.explanations import explain
from conquiet.dashboard.security import root_of
from conquiet.dashboard.servers import DashboardServerError
from conquiet.errors import ConfigurationError, ConquietError
from conquiet.management.dead_letter_pages import stream_of_token, stream_token

if TYPE_CHECKING:
    from conquiet.dashboard.app import Parts

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class View:
    """One request for a page, and its helpers.

    Attributes:
        request: The request.
        access: Rights of its user.
        parts: Servers, fleet, runs, settings.
    """

    request: Request
    access: Access
    parts: "Parts"

    def text(self, name: str, default: str = "") -> str:
        """Return a value of the query, truncated to 1,000 characters."""
        return self.request.query_params.get(name, default)[:1_000]

    def number(self, name: str, default: int) -> int:
        """Return a whole number of the query, at most a million, else the default."""
        raw = self.text(name)
        return min(1_000_000, int(raw)) if raw.isdecimal() and len(raw) < 10 else default  # noqa: PLR2004

    def stream(self) -> bytes:
        """Return the stream of the query that the user may see.

        Raises:
            NotShownError: The query names no stream, or the user may not see it.
        """
        token = self.text("stream")
        if not token or not self.access.allows(Action.VIEW, token):
            raise NotShownError("No such stream, or none that you may see.")
        return stream_of_token(token)


def link(path: str, **params: Any) -> str:
    """Return a path below the dashboard with a query. Parameters that are None or empty are left out."""
    given = {name: value for name, value in params.items() if value not in {None, ""}}
    return path + (f"?{urlencode(given)}" if given else "")


class NotShownError(Exception):
    """The requested object does not exist, or this user may not see it."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes:
        path: Path of the page.
        name: Its entry in the navigation, or the entry of its parent page.
        template: Its template.
        values: Returns the values of the template.
        live: True if its block ``live`` is updated.
        interval_s: Shortest time between two updates.
        urgent: Called every ``interval_s``, even while updates are slower. A changed result causes an immediate update.
    """

    path: str
    name: str
    template: str
    values: Callable[[View], Awaitable[Values]]
    live: bool = True
    interval_s: float = 1.0
    urgent: Callable[[View], Awaitable[object]] | None = None


NAVIGATION: Final = (
    ("overview", "/", "Overview"),
    ("jobs", "/jobs", "Jobs"),
    ("dead", "/dead", "Dead letters"),
    ("schedules", "/schedules", "Schedules"),
    ("workers", "/workers", "Workers"),
    ("database", "/database", "Database"),
    ("rabbit", "/rabbit", "RabbitMQ"),
    ("runs", "/runs", "Bulk runs"),
    ("audit", "/audit", "Audit"),
)


class Renderer:
    """Renders pages and their live blocks."""

    def __init__(self, parts: "Parts") -> None:
        self._parts = parts
        self.environment = Environment(
            loader=PackageLoader("conquiet.dashboard"),
            autoescape=True,  # every template, independent of its name
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self.environment.filters |= {
            "number": formatting.number,
            "rate": formatting.rate,
            "duration": formatting.duration,
            "clock": formatting.clock,
            "size": formatting.size,
            "retries": formatting.retries,
            "first_waits": formatting.first_waits,
            "token": stream_token,
        }
        self.environment.globals |= {"explain": explain, "charts": charts, "version": __version__}
        # Globals, not imports of each template: a block that is rendered alone sees no imports.
        macros = vars(self.environment.get_template("macros.html").module)
        self.environment.globals |= {name: macro for name, macro in macros.items() if not name.startswith("_")}

    def compile_templates(self) -> None:
        """Compile all templates, so that the first page does not wait for the compilation."""
        for name in self.environment.list_templates(extensions=["html"]):
            self.environment.get_template(name)

    async def page(self, page: Page, view: View) -> Response:
        """Return the whole page."""
        values, status = await self._values(page, view)
        html = self.environment.get_template(page.template).render(values)
        response = HTMLResponse(html, status)
        self._parts.forms.remember(view.request, response)
        return response

    async def live_block(self, page: Page, view: View) -> str:
        """Return the part of the page that changes."""
        values, status = await self._values(page, view)
        if values["unavailable"] is not None:
            return self.environment.from_string("{{ unavailable_box(unavailable) }}").render(values)
        if status != 200:  # noqa: PLR2004
            return self.environment.from_string('<p class="notice bad">{{ problem }}</p>').render(values)
        template = self.environment.get_template(page.template)
        return "".join(template.blocks["content"](template.new_context(values)))

    def message(self, view: View, title: str, text: str, *, status: int) -> Response:
        """Return a page with one message."""
        values = self._shared(view, "") | {"title": title, "text": text, "unavailable": None, "problem": ""}
        return HTMLResponse(self.environment.get_template("message_only.html").render(values), status)

    async def _values(self, page: Page, view: View) -> tuple[Values, int]:
        shared = self._shared(view, page.name) | {
            "unavailable": None,
            "problem": "",
            "is_live": page.live,
            "page": page,
        }
        try:
            return shared | await page.values(view), 200
        except DashboardServerError as error:
            return shared | {"unavailable": error}, 200
        except NotShownError as error:
            return shared | {"problem": str(error)}, 404
        except ConfigurationError as error:
            return shared | {"problem": str(error)}, 400
        except ConquietError as error:
            return shared | {"problem": f"{type(error).__name__}: {error}"}, 200

    def _shared(self, view: View, current: str) -> Values:
        request, settings, now_ms = view.request, self._parts.settings, time.time() * 1000
        root = root_of(request)
        hidden = {name for name, there in (("database", settings.db_url), ("rabbit", settings.rabbit_url)) if not there}
        return {
            "url": lambda path, **params: root + link(path, **params),
            "now_ms": now_ms,
            "ago": lambda ms: formatting.ago(ms, now_ms),
            "access": view.access,
            "Action": Action,
            "current": current,
            "navigation": [one for one in NAVIGATION if one[0] not in hidden],
            "redis_name": settings.redis_name,
            "has_login": self._parts.login is not None,
            "csrf": self._parts.forms.token(request, view.access.user) if view.access.can_change else "",
            "flash": self._parts.flashes.get(view.text("flash")),
            "query": dict(request.query_params),
        }
