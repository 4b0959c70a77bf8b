"""``dashboard(...)``: the ASGI application, alone or mounted under any path of another."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from conquiet.dashboard.access import Authorize
from conquiet.dashboard.actions import ActionRoute, execute
from conquiet.dashboard.doctor import Doctor
from conquiet.dashboard.fleet import Fleet
from conquiet.dashboard.forms import read_form
from conquiet.dashboard.live import Viewers, live
from conquiet.dashboard.page_cache import GrowthRate, PageCache
from conquiet.dashboard.pages import ACTIONS, PAGES
from conquiet.dashboard.runs import RunExecutor
from conquiet.dashboard.security import Gate, root_of
from conquiet.dashboard.servers import Servers
from conquiet.dashboard.settings import LOOPBACK, DashboardSettings
from conquiet.dashboard.signing import CSRF_COOKIE, SESSION_COOKIE, FormTokens, TokenLogin, view_only
from conquiet.dashboard.views import Page, Renderer, View
from conquiet.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_STATIC: Final = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@dataclass
class Parts:
    """Objects that the pages and actions of one dashboard share."""

    settings: DashboardSettings
    servers: Servers
    fleet: Fleet
    runs: RunExecutor
    forms: FormTokens
    login: TokenLogin | None
    flashes: PageCache[str] = field(default_factory=PageCache)
    peeks: PageCache[dict[str, Any]] = field(default_factory=PageCache)
    inbox_growth: GrowthRate = field(default_factory=GrowthRate)
    doctor: Doctor = field(default_factory=Doctor)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    viewers: Viewers = field(init=False)
    renderer: Renderer = field(init=False)

    def __post_init__(self) -> None:
        self.viewers = Viewers(self.settings.max_viewers)
        self.renderer = Renderer(self)


class Dashboard:
    """An ASGI application. ``routes`` holds its routes; all routes that change something are POST.

    Args:
        settings: The settings.
        authorize: Returns the rights of a request. None: every visitor may view and change nothing.
        login: Log-in by token, for ``conquiet dashboard``.
    """

    def __init__(
        self, settings: DashboardSettings, *, authorize: Authorize | None = None, login: TokenLogin | None = None
    ) -> None:
        if settings.reveal and authorize is None and login is None:
            raise ConfigurationError(
                "reveal has no effect: no visitor has the right to it. Pass authorize=, or with 'conquiet dashboard' "
                "set CONQUIET_DASHBOARD_TOKEN"
            )
        servers = Servers(settings)
        self._parts = Parts(settings, servers, Fleet(servers), RunExecutor(servers), FormTokens(settings.secret), login)
        hosts = settings.allowed_hosts
        if hosts is None and authorize is None:
            hosts = LOOPBACK
        self.routes: Sequence[Route] = self._routes()
        self._app = Gate(
            Starlette(routes=list(self.routes), lifespan=self._lifespan),
            authorize=authorize or (view_only if login is None else login.authorize),
            allowed_hosts=hosts,
            has_login=login is not None,
        )

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve one connection."""
        await self._app(scope, receive, send)

    def end_live_pages(self) -> None:
        """Close the event streams of live pages. Browsers reconnect, to this or another process."""
        self._parts.closing.set()

    async def close(self) -> None:
        """Close all connections. Call it if the outer application does not run the lifespan of this one."""
        self._parts.closing.set()
        await self._parts.runs.close()
        await self._parts.servers.close()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self._parts.renderer.compile_templates()
        await self._parts.runs.adopt()
        try:
            yield
        finally:
            await self.close()

    def _routes(self) -> list[Route]:
        routes = [Route("/static/{name}", _static)]
        for page in PAGES:
            routes.append(Route(page.path, partial(self._show, page), methods=["GET"], name=page.template))
            if page.live:
                routes.append(Route(f"/live{page.path}", partial(self._follow, page), methods=["GET"]))
        routes += [Route(action.path, partial(self._act, action), methods=["POST"]) for action in ACTIONS]
        if self._parts.login is not None:
            routes.append(Route("/login", self._login, methods=["GET", "POST"]))
            routes.append(Route("/logout", self._logout, methods=["POST"]))
        return routes

    async def _show(self, page: Page, request: Request) -> Response:
        await self._parts.runs.adopt()
        return await self._parts.renderer.page(page, self._view(request))

    async def _follow(self, page: Page, request: Request) -> Response:
        return live(page, self._view(request))

    async def _act(self, action: ActionRoute, request: Request) -> Response:
        return await execute(action, self._view(request))

    def _view(self, request: Request) -> View:
        return View(request, request.scope["conquiet.access"], self._parts)

    async def _login(self, request: Request) -> Response:
        login = self._parts.login
        assert login is not None  # noqa: S101 - the route exists only with a login
        problem, status = "", 200
        if request.method == "POST":
            response = RedirectResponse(f"{root_of(request)}/", 303)
            form = await read_form(request)
            if login.is_blocked:
                problem, status = "Too many wrong tokens. Wait a minute.", 429
            elif login.log_in(request, response, form.text("token")):
                return response
            else:
                problem, status = "This is not the token.", 401
        template = self._parts.renderer.environment.get_template("login.html")
        html = template.render(root=root_of(request), problem=problem)
        return Response(html, status, media_type="text/html")

    async def _logout(self, request: Request) -> Response:
        response = RedirectResponse(f"{root_of(request)}/", 303)
        for name in (SESSION_COOKIE, CSRF_COOKIE):
            response.delete_cookie(name, path=root_of(request) or "/")
        return response


async def _static(request: Request) -> Response:
    kind = _STATIC.get(request.path_params["name"])
    if kind is None:
        return Response(status_code=404)
    content = files("conquiet.dashboard").joinpath("static", request.path_params["name"]).read_bytes()
    return Response(content, media_type=kind, headers={"Cache-Control": "public, max-age=3600"})


def dashboard(settings: DashboardSettings | str, *, authorize: Authorize | None = None) -> Dashboard:
    """Return a dashboard as an ASGI application.

    >>> app.mount("/conquiet", dashboard("redis://localhost", authorize=rights_of))  # doctest: +SKIP

    Args:
        settings: The settings, or the URL of the Redis.
        authorize: ``authorize(request)``, plain or async, returns ``Access(user, may={...})``, or None for a user
            without access. By default visitors on loopback addresses may view and change nothing.

    Raises:
        ConfigurationError: A setting is invalid. No connection was opened.
    """
    given = DashboardSettings(redis_url=settings) if isinstance(settings, str) else settings
    return Dashboard(given, authorize=authorize)
