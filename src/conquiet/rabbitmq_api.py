"""Query RabbitMQ's management API over HTTP, and read its descriptions of queues. AMQP does not report these facts.

It is not part of ``rabbit``, which needs ``pika``: the doctor and the test servers use it without a client library.

A URL of a broker, ``amqps://`` or ``https://``, may name files for TLS. The options have RabbitMQ's own names:

    cacertfile    the authorities to trust, in place of the system's
    certfile      the certificate of the client
    keyfile       its key, if it is not in ``certfile``
"""

import base64
import json
import re
import ssl
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from conquiet.core.versions import release_of
from conquiet.errors import ConfigurationError

_PORTS: Final = {"http": 15672, "https": 15671}
_TIMEOUT_S: Final = 10.0
_UNAUTHORIZED: Final = 401
_NOT_FOUND: Final = 404
_FIRST_FAILURE: Final = 400

BETWEEN_URLS: Final = re.compile(r",(?=amqps?://)")
_TLS_OPTIONS: Final = ("cacertfile", "certfile", "keyfile")

DEFAULT_DELIVERY_LIMIT: Final = 20
"""The delivery limit of a quorum queue from RabbitMQ 4.0 on, unless it is set."""

_DEFAULT_LIMIT_SINCE: Final = (4, 0)
_NACK_IS_UNCOUNTED_SINCE: Final = (4, 3)


class RabbitApiError(OSError):
    """The management API rejected a request or cannot be reached. The text contains no credentials.

    Attributes:
        status: The HTTP status; 0 without a response.
    """

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def reason(self) -> str:
        """The reason in one or two words."""
        return f"HTTP {self.status}" if self.status else type(self.__cause__).__name__

    @property
    def login_refused(self) -> bool:
        """True if the user name or the password is wrong."""
        return self.status == _UNAUTHORIZED


class RabbitApi:
    """The management API of one broker. Every call blocks.

    Args:
        url: ``http://user:password@host:port``. Default login: guest. Default port: 15672 (https: 15671). With https it
            may have options for TLS.

    Raises:
        ConfigurationError: The URL cannot be used.
    """

    def __init__(self, url: str) -> None:
        self._parts, self._port = _parse(url)
        _, options = split_tls_options(url)
        self._tls = tls_context(self._parts.scheme, options)
        self._user = unquote(self._parts.username or "guest")
        login = f"{self._user}:{unquote(self._parts.password or 'guest')}"
        self._authorization = "Basic " + base64.b64encode(login.encode()).decode()

    def get(self, path: str) -> Any:
        """Return the decoded response, for example of ``/api/overview``; see :meth:`request`."""
        return self.request("GET", path)

    def queue(self, vhost: str, name: str, *, missing_ok: bool = False) -> Any:
        """Return the description of a queue. With ``missing_ok``: None if there is no such queue."""
        return self.request("GET", f"/api/queues/{_quoted(vhost)}/{_quoted(name)}", missing_ok=missing_ok)

    def bindings_of(self, vhost: str, exchange: str) -> Any:
        """Return the bindings from an exchange; an empty list if there is no such exchange."""
        path = f"/api/exchanges/{_quoted(vhost)}/{_quoted(exchange)}/bindings/source"
        return self.request("GET", path, missing_ok=True) or []

    def version(self) -> str:
        """Return the version of the broker."""
        return str(self.get("/api/overview").get("rabbitmq_version", "0"))

    def request(self, method: str, path: str, body: Any = None, *, missing_ok: bool = False) -> Any:
        """Send one request and return the decoded response; None if it is empty.

        Raises:
            RabbitApiError: The broker rejected the request or cannot be reached.
        """
        # http.client instead of urllib: the proxy settings of the machine must not apply to a local broker.
        kind = partial(HTTPSConnection, context=self._tls) if self._parts.scheme == "https" else HTTPConnection
        headers = {"Authorization": self._authorization, "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body)
        try:
            with closing(kind(self._parts.hostname or "", self._port, timeout=_TIMEOUT_S)) as connection:
                connection.request(method, self._parts.path.rstrip("/") + path, content, headers)
                response = connection.getresponse()
                answer = response.read()
            if response.status < _FIRST_FAILURE:
                return json.loads(answer) if answer else None
        except (OSError, HTTPException, ValueError) as error:
            raise RabbitApiError(f"{method} {path}: no answer ({type(error).__name__})") from error
        if missing_ok and response.status == _NOT_FOUND:
            return None
        text = answer.decode(errors="replace")[:300]
        raise RabbitApiError(f"{method} {path}: {response.status} {text}", status=response.status)

    def create_vhost(self, name: str) -> None:
        """Create a vhost and grant the API user all permissions in it."""
        vhost = _quoted(name)
        self.request("PUT", f"/api/vhosts/{vhost}", {})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.request("PUT", f"/api/permissions/{vhost}/{_quoted(self._user)}", everything)

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost and its queues. The broker closes its connections. A missing vhost is not an error."""
        self.request("DELETE", f"/api/vhosts/{_quoted(name)}", missing_ok=True)


def default_api_url(amqp_url: str) -> str:
    """Return the default URL of a broker's management API: the same host, login and TLS files, port 15672 or 15671.

    Of several URLs, it is the API of the first broker.
    """
    parts = urlsplit(BETWEEN_URLS.split(amqp_url)[0])
    scheme = "https" if parts.scheme == "amqps" else "http"
    login = f"{parts.username}:{parts.password or ''}@" if parts.username else ""
    host = parts.hostname or "localhost"
    if ":" in host:
        host = f"[{host}]"
    tls = "&".join(option for option in parts.query.split("&") if option.partition("=")[0] in _TLS_OPTIONS)
    return f"{scheme}://{login}{host}:{_PORTS[scheme]}" + (f"?{tls}" if tls else "")


def vhost_of(amqp_url: str) -> str:
    """Return the vhost of an AMQP URL; of the first one, if there are several."""
    return unquote(urlsplit(BETWEEN_URLS.split(amqp_url)[0]).path[1:]) or "/"


def with_vhost(amqp_url: str, name: str) -> str:
    """Return ``amqp_url`` with another vhost."""
    return urlunsplit(urlsplit(amqp_url)._replace(path="/" + _quoted(name)))


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _parse(api_url: str) -> tuple[SplitResult, int]:
    """Return the parts and the port. A URL without http:// is rejected: its host would be parsed as a scheme."""
    with suppress(AttributeError, KeyError, ValueError):  # AttributeError: not a text
        parts = urlsplit(api_url)
        port = parts.port or _PORTS[parts.scheme]
        if parts.scheme in _PORTS and parts.hostname:
            return parts, port
    raise ConfigurationError(
        "the URL of RabbitMQ's management API cannot be read; write it as http://user:password@host:15672"
    )


# ------------------------------------------------------------------ TLS
def split_tls_options(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without its options for TLS, and the options.

    Raises:
        ConfigurationError: An option is empty, or given twice.
    """
    if not any(f"{name}=" in url for name in _TLS_OPTIONS):
        return url, {}
    parts = urlsplit(url)
    others, options = [], {}
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        if name not in _TLS_OPTIONS:
            others.append(pair)
        elif name in options or not value:
            raise ConfigurationError(
                f"{name} in the URL of RabbitMQ must name one file: write {name}=/path/of/file.pem"
            )
        else:
            options[name] = unquote(value)
    return urlunsplit(parts._replace(query="&".join(others))), options


def tls_context(scheme: str, options: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return a context with these files; None without options. It verifies certificate and host name.

    Raises:
        ConfigurationError: URLs with this scheme use no TLS, or a file cannot be used. The text names it.
    """
    if not options:
        return None
    if not scheme.endswith("s"):
        raise ConfigurationError(
            f"files for TLS are for {scheme}s://, and the URL of RabbitMQ says {scheme}://: nothing would be encrypted"
        )
    authorities, certificate, key = (options.get(name) for name in _TLS_OPTIONS)
    if key is not None and certificate is None:
        raise ConfigurationError("the URL of RabbitMQ has a keyfile and no certfile: the key belongs to a certificate")
    try:
        context = ssl.create_default_context(cafile=authorities)
    except (OSError, ValueError) as error:
        raise _unusable(f"cacertfile {authorities!a}", error) from error
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key, password=_reject_password)
        except (OSError, ValueError) as error:
            keyed = "" if key is None else f" with keyfile {key!a}"
            raise _unusable(f"certfile {certificate!a}{keyed}", error) from error
    return context


def _reject_password() -> str:
    # Without this, OpenSSL would read the password from the terminal, and the process would wait there.
    raise ValueError("the key is encrypted, and needs a password")


def _unusable(what: str, error: Exception) -> ConfigurationError:
    reason = getattr(error, "strerror", None) or (str(error) if type(error) is ValueError else type(error).__name__)
    return ConfigurationError(f"{what} in the URL of RabbitMQ cannot be used: {reason}")


# ------------------------------------------------------------------ descriptions of queues
def queue_setting(description: Any, name: str) -> Any:
    """Return a setting such as ``dead-letter-exchange``: the queue's argument, else its policy's value, else None."""
    own, of_policy = _argument_and_policy(description, name)
    return of_policy if own is None else own


def _argument_and_policy(description: Any, name: str) -> tuple[Any, Any]:
    facts = description if isinstance(description, dict) else {}
    arguments, policy = facts.get("arguments"), facts.get("effective_policy_definition")
    own = arguments.get(f"x-{name}") if isinstance(arguments, dict) else None
    return own, policy.get(name) if isinstance(policy, dict) else None


def has_dead_letter_exchange(description: Any) -> bool:
    """Return whether the queue has a dead-letter exchange, by an argument or by a policy."""
    # An empty name is the default exchange. Only a missing setting means that there is none.
    return queue_setting(description, "dead-letter-exchange") is not None


def dead_letter_queue(description: Any) -> str | None:
    """Return the queue to which the default exchange sends dead letters; None if another exchange routes them."""
    if queue_setting(description, "dead-letter-exchange") != "":
        return None
    # Without this key a message keeps the routing key of its publisher, which is unknown here.
    key = queue_setting(description, "dead-letter-routing-key")
    return key if isinstance(key, str) and key else None


def nack_is_uncounted(release: tuple[int, ...]) -> bool:
    """Return whether a quorum queue does not count a nack. A message beyond its limit is still dropped."""
    return release >= _NACK_IS_UNCOUNTED_SINCE


def delivery_limit(description: dict[str, Any], version: str) -> int | None:
    """Return the number of deliveries after which the broker drops or dead-letters a message; None if unlimited."""
    if description.get("type") != "quorum":
        return None
    limits = [limit for limit in _argument_and_policy(description, "delivery-limit") if isinstance(limit, int)]
    if not limits and release_of(version) >= _DEFAULT_LIMIT_SINCE:
        limits = [DEFAULT_DELIVERY_LIMIT]
    return min((limit for limit in limits if limit >= 0), default=None)  # from 4.0 on, -1 means unlimited
