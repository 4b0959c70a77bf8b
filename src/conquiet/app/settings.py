"""Settings of an application, and the defaults of its server arguments."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from conquiet.core.decode_function import require_decode
from conquiet.core.server_urls import FILE, KEYS, configured_url
from conquiet.core.validation import require_positive, require_seconds, require_table
from conquiet.errors import ConfigurationError

if TYPE_CHECKING:
    from conquiet.core.decode_function import Decode
    from conquiet.processor.settings import ProcessorSettings
    from conquiet.redis_transport.client import AnyRedis
    from conquiet.runtime.settings import RuntimeSettings
    from conquiet.transactional.purging import DatabaseRetention

Keep = Literal["default"]
"""Means the default settings of a package that is imported only if it is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSettings:
    """Settings of ``App`` that have a default.

    Attributes:
        processor: Retries, dead letters, unknown events; None takes the defaults of ``ProcessorSettings``.
        runtime: The engine's settings; None takes the defaults of ``RuntimeSettings``.
        inbox: Name of the inbox table.
        outbox: Name of the outbox table.
        relay_poll_s: Pause of the relay when the outbox is empty: the longest delay that it adds to a message.
        retention: Age at which rows are deleted: 30 days in the inbox; parked rows of the outbox are kept unless
            ``parked_s`` is set. None deletes no rows. Workers delete old rows while they are idle, one host at a time.
        wait_s: Longest wait of ``run()`` for a server that cannot be reached at the start; 0 does not wait.
        partitions: Minimum number of partitions of the app's stream, so that several masters of a Redis Cluster serve
            it. A stream that has fewer grows when workers start; the number does not shrink. Above 1, ``debounce`` is
            not offered, and rate limits hold for each partition.
    """

    processor: "ProcessorSettings | None" = field(default=None)
    runtime: "RuntimeSettings | None" = field(default=None)
    inbox: str = "conquiet_inbox"
    outbox: str = "conquiet_outbox"
    relay_poll_s: float = 0.2
    wait_s: float = 30.0
    retention: "DatabaseRetention | Keep | None" = "default"
    partitions: int = 1

    def __post_init__(self) -> None:
        require_table("inbox", self.inbox)
        require_table("outbox", self.outbox)
        require_seconds("relay_poll_s", self.relay_poll_s)
        require_seconds("wait_s", self.wait_s, zero_allowed=True)
        require_positive("partitions", self.partitions)
        if self.retention is not None and self.retention != "default" and not hasattr(self.retention, "inbox_s"):
            raise ConfigurationError("retention must be a DatabaseRetention, or None to delete no rows")


def url_or(given: Any, variable: str) -> Any:
    """Return the argument, or the URL of the environment or the file if it is None; None if there is none."""
    if given is not None:
        return given
    return configured_url(variable) or None


def missing_server(server: str, argument: str, variable: str, why: str) -> ConfigurationError:
    """Return the error for a server that is needed and was not given."""
    return ConfigurationError(
        f"{why}, but the app has no {server}: give App(…, {argument}=…), set {variable}, or write "
        f'{KEYS[variable]} = "…" into {FILE}'
    )


def redis_client(given: "str | AnyRedis") -> "AnyRedis":
    """Return the client, made from a URL if it is one. Nothing is sent."""
    if not isinstance(given, str):
        return given
    from conquiet.redis_transport.client import AsyncClient
    from conquiet.redis_transport.redis_url import client_from_url

    client: AsyncClient = client_from_url(AsyncClient.from_url, given)
    return client


def require_one_decode(decode: "Decode | None", settings: AppSettings) -> "Decode | None":
    """Return the function that reads entries of other programs: from the app's argument, or from its settings."""
    require_decode(decode)
    given = None if settings.runtime is None else settings.runtime.decode
    if decode is not None and given is not None:
        raise ConfigurationError("decode is given to App and in its RuntimeSettings: give it once, App(…, decode=…)")
    return given if decode is None else decode


def with_decode(runtime: "RuntimeSettings | None", decode: "Decode | None") -> "RuntimeSettings | None":
    """Return the engine's settings with that function."""
    if decode is None:
        return runtime
    from conquiet.runtime.settings import RuntimeSettings

    return replace(RuntimeSettings() if runtime is None else runtime, decode=decode)
