"""Sign cookies and form tokens: log-ins expire, forms must come from this dashboard, log-in attempts are limited."""

import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from conquiet.core.validation import require_text
from conquiet.dashboard.access import EVERYTHING, READ_ONLY, Access
from conquiet.dashboard.security import root_of
from conquiet.dashboard.settings import LOOPBACK

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

SESSION_COOKIE: Final = "conquiet_session"
CSRF_COOKIE: Final = "conquiet_csrf"
SESSION_S: Final = 12 * 3600
_FAILURES: Final = 10
_WINDOW_S: Final = 60.0


def sign(secret: str, purpose: str, text: str) -> str:
    """Return the signature of a text for one purpose."""
    return hmac.new(secret.encode(), f"{purpose}\0{text}".encode(), hashlib.sha256).hexdigest()


def is_equal(secret: str, given: str) -> bool:
    """Compare a secret with a text from outside, in a time that does not depend on the text."""
    return hmac.compare_digest(secret.encode(), given.encode())  # as bytes: of texts it takes ASCII only


def view_only(_request: "Request") -> Access:
    """Return the rights of a visitor without a log-in."""
    return Access("visitor", READ_ONLY)


class FormTokens:
    """Tokens that every form must contain. A token is valid for one browser (by a cookie) and one user."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def token(self, request: "Request", user: str) -> str:
        """Return the token for the forms of this page; ``remember`` sets its cookie."""
        nonce = request.cookies.get(CSRF_COOKIE) or getattr(request.state, "csrf_nonce", "")
        if not nonce:
            nonce = request.state.csrf_nonce = secrets.token_urlsafe(24)
        return sign(self._secret, "form", f"{nonce}\0{user}")

    def remember(self, request: "Request", response: "Response") -> None:
        """Set the cookie if ``token`` has created a new one."""
        nonce = getattr(request.state, "csrf_nonce", "")
        if nonce:
            set_cookie(request, response, CSRF_COOKIE, nonce, None)

    def is_valid(self, request: "Request", user: str, given: str) -> bool:
        """Return whether the form comes from a page that this dashboard sent to this browser."""
        nonce = request.cookies.get(CSRF_COOKIE, "")
        return bool(nonce) and is_equal(sign(self._secret, "form", f"{nonce}\0{user}"), given)


class TokenLogin:
    """Log-in by one shared token, for ``conquiet dashboard``.

    Args:
        token: The token.
        secret: Signs the session.
        open_reading: Visitors without a session may view.
        clock: Seconds since the epoch.
    """

    def __init__(self, token: str, *, secret: str, open_reading: bool, clock: Callable[[], float] = time.time) -> None:
        self._token = require_text("token", token)
        self._secret = secret
        self._open_reading = open_reading
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=_FAILURES)

    def authorize(self, request: "Request") -> Access | None:
        """Return all rights for a session, else the rights of a visitor."""
        if self._has_session(request):
            return Access("token", EVERYTHING)
        return view_only(request) if self._open_reading else None

    @property
    def is_blocked(self) -> bool:
        """True after ten wrong tokens within a minute, from all clients together."""
        full = len(self._failures) == _FAILURES
        return full and self._clock() - self._failures[0] < _WINDOW_S

    def log_in(self, request: "Request", response: "Response", given: str) -> bool:
        """Start a session if the token is correct."""
        if self.is_blocked:
            return False
        if not is_equal(self._token, given):
            self._failures.append(self._clock())
            return False
        issued = f"{int(self._clock())}.{secrets.token_urlsafe(16)}"
        signed = f"{issued}.{sign(self._secret, 'session', issued)}"
        set_cookie(request, response, SESSION_COOKIE, signed, SESSION_S)
        return True

    def _has_session(self, request: "Request") -> bool:
        issued, _, signature = request.cookies.get(SESSION_COOKIE, "").rpartition(".")
        if not issued or not is_equal(sign(self._secret, "session", issued), signature):
            return False
        began = issued.partition(".")[0]
        return began.isdecimal() and 0 <= self._clock() - int(began) < SESSION_S


def set_cookie(request: "Request", response: "Response", name: str, value: str, max_age: int | None) -> None:
    """Set a cookie for the path of the dashboard. On loopback it is not Secure: Safari drops Secure cookies of HTTP."""
    loopback = request.url.scheme == "http" and f"{request.url.hostname}" in {*LOOPBACK, "::1"}
    response.set_cookie(
        name,
        value,
        max_age=max_age,
        path=root_of(request) or "/",
        secure=not loopback,
        httponly=True,
        samesite="strict",
    )
