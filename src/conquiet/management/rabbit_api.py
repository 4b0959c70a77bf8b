"""RabbitMQ's management API, as far as operators need it. AMQP itself tells next to nothing about a queue."""

import base64
import json
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from conquiet.errors import ConfigurationError

_PORTS: Final = {"http": 15672, "https": 15671}
_TIMEOUT_S: Final = 10.0
_OK: Final = 200
_UNAUTHORIZED: Final = 401
_DEFAULT_LIMIT_SINCE: Final = (4, 0)
DEFAULT_LIMIT: Final = 20
_NACKS_ARE_FREE_SINCE: Final = (4, 3)


class RabbitApiError(Exception):
    """The management API did not answer, or not with what was asked for. The text has no credentials."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def refused(self) -> bool:
        """Whether it was the user name or the password."""
        return self.status == _UNAUTHORIZED


def management_url(amqp_url: str) -> str:
    """Return where the management API of a broker usually is: the same host and login, port 15672."""
    parts = urlsplit(amqp_url)
    scheme = "https" if parts.scheme == "amqps" else "http"
    login = f"{parts.username}:{parts.password or ''}@" if parts.username else ""
    host = parts.hostname or "localhost"
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{login}{host}:{_PORTS[scheme]}"


def ask_api(api_url: str, path: str) -> Any:
    """Return what is there.

    Raises:
        ConfigurationError: The URL is none of HTTP.
        RabbitApiError: No answer, or a refusal.
    """
    parts, port = _parsed(api_url)
    login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
    headers = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    try:
        with closing(kind(parts.hostname or "", port, timeout=_TIMEOUT_S)) as connection:
            connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
            response = connection.getresponse()
            body = response.read()
        if response.status == _OK:
            return json.loads(body)
    except (OSError, HTTPException, ValueError) as error:
        raise RabbitApiError(f"no answer ({type(error).__name__})") from error
    raise RabbitApiError(f"HTTP {response.status}", status=response.status)


def _parsed(api_url: str) -> tuple[SplitResult, int]:
    """Return its parts and its port. Without http:// the host would be read as a scheme, and somebody else be asked."""
    with suppress(KeyError, ValueError):
        parts = urlsplit(api_url)
        port = parts.port or _PORTS[parts.scheme]
        if parts.scheme in _PORTS and parts.hostname:
            return parts, port
    raise ConfigurationError(
        "the URL of RabbitMQ's management API cannot be read; write it as http://user:password@host:15672"
    )


def setting(queue: dict[str, Any], argument: str, policy: str) -> Any:
    """Return a setting of a queue, from its own argument or from the policy that holds for it; None without."""
    arguments = queue.get("arguments") or {}
    effective = queue.get("effective_policy_definition") or {}
    return arguments.get(argument, effective.get(policy) if isinstance(effective, dict) else None)


def release_of(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def nacks_are_free(version: str) -> bool:
    """Say whether a quorum queue does not count a nack. What is beyond its limit already it drops all the same."""
    return release_of(version) >= _NACKS_ARE_FREE_SINCE


def delivery_limit(queue: dict[str, Any], version: str) -> int | None:
    """Return after how many deliveries the broker drops a message or sends it to the DLX; None for never."""
    if queue.get("type") != "quorum":
        return None
    policy = queue.get("effective_policy_definition") or {}
    told = ((queue.get("arguments") or {}).get("x-delivery-limit"), dict(policy).get("delivery-limit"))
    limits = [limit for limit in told if isinstance(limit, int)]
    if not limits and release_of(version) >= _DEFAULT_LIMIT_SINCE:
        limits = [DEFAULT_LIMIT]
    return min((limit for limit in limits if limit >= 0), default=None)  # from 4.0 on, -1 is no limit
