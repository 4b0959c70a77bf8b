"""How a dashboard is set up, checked when it is built."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from conquiet.core.redaction import redact_url
from conquiet.core.validation import require_positive, require_seconds, require_text
from conquiet.dashboard.redaction import redact_secrets
from conquiet.errors import ConfigurationError

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_SHORTEST_TOKEN: Final = 16

Redact = Callable[[str, str, Any], Any]
"""``redact(stream, event, payload)`` returns what may be shown of a payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    """What a dashboard shows, and to whom.

    Attributes:
        redis_url: The Redis whose streams are shown.
        db_url: The database of inbox and outbox; empty leaves the page out.
        rabbit_url: The RabbitMQ; empty leaves the page out.
        rabbit_api_url: Its management API; by default on the same host.
        schedule_groups: Groups whose schedules are shown.
        inbox: Name of the inbox table.
        outbox: Name of the outbox table.
        reveal: Payloads may be shown to users with the right ``reveal``, through ``redact``. Off by default.
        redact: Returns what may be shown of a payload. By default the values of fields that are named like secrets and
            personal data are masked.
        allowed_hosts: Host names that a request may be addressed to. None: loopback names without ``authorize``, and
            any name with it.
        secret: Signs forms and log-ins. Give the same to several processes; by default each has one of its own.
        timeout_s: How long a server may take to answer one question of a page.
        most_viewers: Most pages that are kept up to date at once. A further one is shown as it was loaded.
    """

    redis_url: str = field(repr=False)
    db_url: str = field(default="", repr=False)
    rabbit_url: str = field(default="", repr=False)
    rabbit_api_url: str = field(default="", repr=False)
    schedule_groups: tuple[str, ...] = ("processor",)
    inbox: str = "conquiet_inbox"
    outbox: str = "conquiet_outbox"
    reveal: bool = False
    redact: Redact = redact_secrets
    allowed_hosts: tuple[str, ...] | None = None
    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    timeout_s: float = 3.0
    most_viewers: int = 50

    def __post_init__(self) -> None:
        require_text("redis_url", self.redis_url)
        require_seconds("timeout_s", self.timeout_s)
        require_positive("most_viewers", self.most_viewers)
        for name in ("schedule_groups", "allowed_hosts"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise ConfigurationError(f"{name} must be a tuple of names, not a text")
        if not isinstance(self.reveal, bool):
            raise ConfigurationError("reveal must be True or False; what is shown is decided by redact=")
        if not callable(self.redact):
            raise ConfigurationError("redact must be a function of stream, event and payload")
        require_token("secret", self.secret)

    @property
    def redis_name(self) -> str:
        """The Redis as it is shown: without a password."""
        return redact_url(self.redis_url)


def require_token(name: str, value: str) -> str:
    """Return a secret that is long enough not to be guessed."""
    if len(value) < _SHORTEST_TOKEN:
        raise ConfigurationError(
            f"{name} must have at least {_SHORTEST_TOKEN} characters; make one with: "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return value
