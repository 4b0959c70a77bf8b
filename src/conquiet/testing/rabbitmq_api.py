"""RabbitMQ's management API, as far as tests need it: vhosts, and whatever GET has to tell.

``rabbitmqctl`` could do the same and takes seconds for each call, because it starts an Erlang machine.
"""

from __future__ import annotations

import base64
import json
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

_TIMEOUT_S = 10.0
_NOT_FOUND = 404
_FIRST_FAILURE = 400


class ManagementError(OSError):
    """The management API did not do what it was asked; the text has its answer."""


class ManagementApi:
    """One broker's management API.

    Args:
        url: ``http://user:password@host:port``.
    """

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        user, password = unquote(self._parts.username or "guest"), unquote(self._parts.password or "guest")
        self._user = user
        self._authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def request(self, method: str, path: str, body: Any = None, *, missing_ok: bool = False) -> Any:
        """Send one request, for example ``request("GET", "/api/consumers/%2F")``, and return the decoded answer.

        Raises:
            ManagementError: The broker refused or is not there (an ``OSError``).
        """
        headers = {"Authorization": self._authorization, "Content-Type": "application/json"}
        # http.client and not urllib: the machine's proxy settings must not come between us and loopback.
        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        address = self._parts.hostname or "127.0.0.1"
        with closing(kind(address, self._parts.port or 15672, timeout=_TIMEOUT_S)) as connection:
            try:
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                response = connection.getresponse()
                text = response.read()
            except HTTPException as error:
                raise ManagementError(f"{method} {path}: {error!r}") from error
        if response.status >= _FIRST_FAILURE and not (missing_ok and response.status == _NOT_FOUND):
            raise ManagementError(f"{method} {path}: {response.status} {text.decode(errors='replace')[:300]}")
        return json.loads(text) if text and response.status < _FIRST_FAILURE else None

    def create_vhost(self, name: str) -> None:
        """Create a vhost in which our user may do everything."""
        vhost = quote(name, safe="")
        self.request("PUT", f"/api/vhosts/{vhost}", {})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.request("PUT", f"/api/permissions/{vhost}/{quote(self._user, safe='')}", everything)

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost with all it holds; the broker closes the connections to it. A missing one is fine."""
        self.request("DELETE", f"/api/vhosts/{quote(name, safe='')}", missing_ok=True)


def with_vhost(amqp_url: str, name: str) -> str:
    """``amqp_url`` with another vhost."""
    return urlunsplit(urlsplit(amqp_url)._replace(path="/" + quote(name, safe="")))
