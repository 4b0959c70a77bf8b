"""Settings of a dashboard, validated when they are created."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from conquiet.core.redaction import redact_url
from conquiet.core.validation import require_positive, require_seconds, require_table, require_text
from conquiet.dashboard.redaction import redact_secrets
from conquiet.errors import ConfigurationError

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_SHORTEST_TOKEN: Final = 16

Redact = Callable[[str, str, Any], Any]
"""``redact(stream, event, payload)`` returns the payload as it may be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    """Settings of a dashboard.

    Attributes:
        redis_url: The Redis with the streams.
        db_url: The database of inbox and outbox; empty hides the page.
        rabbit_url: The RabbitMQ; empty hides the page.
        rabbit_api_url: Its management API; by default on the same host.
        schedule_groups: Groups of schedules to show.
        inbox: Name of the inbox table.
        outbox: Name of the outbox table.
        reveal: Show payloads to users with the right ``reveal``, through ``redact``. Off by default.
        redact: Returns a payload as it may be shown. By default it masks the values of fields that are named like
            secrets and personal data.
        allowed_hosts: Accepted host names of requests. None: loopback names without ``authorize``, any name with
            ``authorize``.
        secret: Signs forms and log-ins. Use the same value in several processes; by default each process creates one.
        timeout_s: Longest wait for a reply to one query of a page.
        max_viewers: Most pages with live updates. Further pages are not updated.
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
    max_viewers: int = 50

    def __post_init__(self) -> None:
        require_text("redis_url", self.redis_url)
        require_seconds("timeout_s", self.timeout_s)
        require_positive("max_viewers", self.max_viewers)
        require_table("inbox", self.inbox)
        require_table("outbox", self.outbox)
        for name in ("schedule_groups", "allowed_hosts"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise ConfigurationError(f"{name} must be a tuple of names, not a text")
        if not isinstance(self.reveal, bool):
            raise ConfigurationError("reveal must be True or False; redact= decides what is shown")
        if not callable(self.redact):
            raise ConfigurationError("redact must be a function of stream, event and payload")
        require_token("secret", self.secret)

    @property
    def redis_name(self) -> str:
        """URL of the Redis without a password."""
        return redact_url(self.redis_url)


def require_token(name: str, value: str) -> str:
    """Return the secret if it is long enough; raise otherwise."""
    if len(value) < _SHORTEST_TOKEN:
        raise ConfigurationError(
            f"{name} must have at least {_SHORTEST_TOKEN} characters; make one with: "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return value
