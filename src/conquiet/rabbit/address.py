"""Check AMQP URLs, and convert them to the parameters of the client library."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import pika

from conquiet._version import __version__
from conquiet.core.redaction import redact_url
from conquiet.core.validation import require_instance, require_seconds, require_text
from conquiet.errors import ConfigurationError
from conquiet.rabbit.tables import pack_short
from conquiet.rabbitmq_api import BETWEEN_URLS, split_tls_options, tls_context, vhost_of

_LONGEST_HEARTBEAT_S: Final = 65_535  # the protocol has 16 bits for it


@dataclass(frozen=True, slots=True)
class Address:
    """One broker, or the nodes of one cluster, which are tried in turn. Checked when it is created.

    Attributes:
        urls: ``amqp://`` or ``amqps://``; not shown by ``repr``, because they hold credentials. An ``amqps://`` URL may
            name files for TLS, see ``rabbitmq_api``. They are read for each connection, so they may be renewed.
        ssl_context: Used for ``amqps``, in place of such files. None verifies the host name, and the certificate
            against the authorities of the system.
        heartbeat_s: None uses the broker's proposal.
        timeout_s: Longest wait for a connection.
        name: Name of the connection on the broker's management page.
    """

    urls: tuple[str, ...] = field(repr=False)
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    heartbeat_s: int | None = None
    timeout_s: float = 10.0
    name: str = "conquiet"

    def __post_init__(self) -> None:
        if not self.urls:
            raise ConfigurationError("at least one AMQP URL is needed")
        require_seconds("timeout_s", self.timeout_s)
        if self.ssl_context is not None:
            require_instance("ssl_context", self.ssl_context, ssl.SSLContext)
        for url in self.urls:
            self._parameters(url)
        if self.ssl_context is not None and not any(url.startswith("amqps://") for url in self.urls):
            raise ConfigurationError("ssl_context is for amqps:// and the URL says amqp://: nothing would be encrypted")

    @property
    def shown(self) -> str:
        """The URLs without their credentials."""
        return ", ".join(redact_url(url) for url in self.urls)

    @property
    def vhost(self) -> str:
        """The virtual host of the first URL."""
        return vhost_of(self.urls[0])

    def parameters(self, attempt: int) -> Any:
        """Return pika's parameters for an attempt. Each attempt uses the next node."""
        return self._parameters(self.urls[attempt % len(self.urls)])

    def _parameters(self, url: object) -> Any:
        if not isinstance(url, str) or not url.startswith(("amqp://", "amqps://")):
            raise ConfigurationError("an AMQP URL starts with amqp:// or amqps://")
        _check_spelling(url)
        bare_url, tls_options = split_tls_options(url)
        try:
            parameters = pika.URLParameters(bare_url)
        except Exception:  # noqa: BLE001 - pika's checks raise errors of several types
            # Without the cause: pika's text may quote the URL, password included.
            raise ConfigurationError(f"not an AMQP URL that can be used: {redact_url(url)}") from None
        if tls_options and self.ssl_context is not None:
            raise ConfigurationError("files for TLS are in the AMQP URL and ssl_context is given: give one of them")
        scheme = url.partition(":")[0]
        context = self.ssl_context or tls_context(scheme, tls_options)
        if scheme == "amqps":
            context = context or ssl.create_default_context()
            parameters.ssl_options = pika.SSLOptions(context, urlsplit(url).hostname)
        if self.heartbeat_s is not None:
            parameters.heartbeat = self.heartbeat_s
        if parameters.heartbeat == 0:
            raise ConfigurationError("heartbeat=0 in an AMQP URL is refused: a dead peer would never be noticed")
        if isinstance(parameters.heartbeat, int) and parameters.heartbeat > _LONGEST_HEARTBEAT_S:
            raise ConfigurationError(f"a heartbeat can be {_LONGEST_HEARTBEAT_S} s at most")
        parameters.client_properties = {
            "product": "conquiet",
            "version": __version__,
            "connection_name": self.name,
        }
        return parameters


def _check_spelling(url: str) -> None:
    """Refuse a URL that the client library would misread. The error does not quote it."""
    try:
        parts = urlsplit(url)
    except ValueError:  # not a valid IP address in the brackets; the text of the error quotes it
        raise ConfigurationError(f"not an AMQP URL that can be used: {redact_url(url)}") from None
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ConfigurationError(
            "an AMQP URL has an @ behind its host: write / ? # and @ in a name or a password as %2F %3F %23 and %40"
        )
    if any(option.startswith("ssl_options=") for option in parts.query.split("&")):
        raise ConfigurationError(
            "ssl_options in an AMQP URL is refused: name the files as amqps://…?cacertfile=…&certfile=…&keyfile=…"
        )
    if "/" in parts.path[1:]:
        raise ConfigurationError(
            "an AMQP URL names one virtual host, and this one has a second slash: write a slash in its name as %2F"
        )


def as_urls(url: str | Sequence[str]) -> tuple[str, ...]:
    """Return one URL or several as a tuple. A text may hold several: ``amqp://one/,amqp://two/``."""
    if isinstance(url, str):
        return tuple(BETWEEN_URLS.split(url))
    if not isinstance(url, Sequence):
        raise ConfigurationError("url must be an AMQP URL, or a list of them")
    return tuple(url)


def require_name(what: str, value: object) -> str:
    """Return ``value`` if it is a valid AMQP name: a text of at most 255 bytes."""
    name = require_text(what, value)
    try:
        pack_short(name)
    except ValueError:
        raise ConfigurationError(f"{what} must be a text of at most 255 bytes") from None
    return name
