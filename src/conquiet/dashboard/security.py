"""Check every request before it reaches a page, and set the security headers of every response.

    1  Host        an unexpected name is refused, because a foreign page could resolve its name to this server
    2  access      authorize(request); without access the response is 401 or the log-in page
    3  read-only   a method that may change something needs a right to change something
    4  origin      such a request must come from a page of this dashboard
    5  the route   checks the form's token and the right for the action and stream (``actions``)

Steps 1 to 4 apply to all routes, so a new route cannot bypass them. See docs/decisions/0053.
"""

import inspect
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from conquiet.dashboard.access import Access, Authorize
from conquiet.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
MOST_BODY: Final = 262_144
OPEN_PATHS: Final = ("/login", "/static/")
"""Paths that need no access: the log-in page and its static files."""

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
}


class Gate:
    """The outermost ASGI application of a dashboard.

    Args:
        app: The inner application.
        authorize: Returns the rights of a request.
        allowed_hosts: Accepted names of the Host header, without a port; None accepts every name.
        has_login: True if there is a log-in page to redirect users to.
    """

    def __init__(
        self, app: "ASGIApp", *, authorize: Authorize, allowed_hosts: tuple[str, ...] | None, has_login: bool
    ) -> None:
        self._app = app
        self._authorize = authorize
        self._allowed = None if allowed_hosts is None else frozenset(one.lower() for one in allowed_hosts)
        self._has_login = has_login

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        refused = await self._refuse(request)
        app = refused or self._app

        async def send_protected(message: "Message") -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await app(scope, receive, send_protected)

    async def _refuse(self, request: Request) -> Response | None:
        if self._allowed is not None and _host_name(request) not in self._allowed:
            return PlainTextResponse(
                "This dashboard does not serve this host name. Name it in allowed_hosts (--allowed-host).", 421
            )
        access = await self._access(request)
        request.scope["conquiet.access"] = access
        path = local_path(request)
        opened = self._has_login and path.startswith(OPEN_PATHS)
        if request.method not in SAFE_METHODS:
            return self._reject_change(request, access, opened=opened)
        if access is None and not opened:
            if self._has_login and request.method == "GET" and not path.startswith("/live"):
                return RedirectResponse(f"{root_of(request)}/login", 303)
            return PlainTextResponse("You have no access to this dashboard.", 401)
        return None

    def _reject_change(self, request: Request, access: Access | None, *, opened: bool) -> Response | None:
        if not opened and (access is None or not access.can_change):
            return PlainTextResponse(
                "This dashboard is read-only for you: nothing was changed. Log in, or ask for the right to do this.",
                403,
            )
        if not _is_same_origin(request):
            return PlainTextResponse("This request does not come from a page of this dashboard.", 403)
        length = request.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MOST_BODY:
            return PlainTextResponse("The request is too large, or does not state its size.", 413)
        return None

    async def _access(self, request: Request) -> Access | None:
        found = self._authorize(request)
        access = await found if inspect.isawaitable(found) else found
        if access is not None and not isinstance(access, Access):
            raise ConfigurationError("authorize must return an Access or None")
        return access


def root_of(request: Request) -> str:
    """Return the mount path of the dashboard, without a trailing slash."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def local_path(request: Request) -> str:
    """Return the path below the mount."""
    path, root = str(request.scope["path"]), root_of(request)
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def _host_name(request: Request) -> str:
    host = request.headers.get("host", "").lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _is_same_origin(request: Request) -> bool:
    """Return whether the headers name a page of this dashboard. Without such headers the form's token decides."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return True
    return origin != "null" and urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()
