"""Settings of an engine, validated when they are built."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from conquiet.config import CLAIM_IDLE_MS
from conquiet.core.backoff import Backoff
from conquiet.core.decode_function import Decode, require_decode
from conquiet.core.validation import require_bool, require_instance, require_positive, require_seconds, require_text
from conquiet.errors import ConfigurationError
from conquiet.queue.retention import Retention, require_retention
from conquiet.redis_transport.client import SOCKET_TIMEOUT_S

RELEASED_IDLE_MS = 24 * 60 * 60 * 1000
"""Idle time of a released entry: the maximum of ``claim_idle_ms``, so that it is stale for every consumer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """Optional settings of ``runtime.Consumer``.

    Attributes:
        block_ms: Longest wait of one read. The engine splits it into shorter waits, so that it notices
            stop requests and stale entries.
        claim_idle_ms: Idle time after which another consumer may claim an entry, a day at most. The engine extends its
            leases every third of this time.
        prefetch: Maximum number of messages held beyond the free workers. Only messages that will start within 50 ms,
            by the average handling time, are prefetched: slow handlers prefetch nothing.
        max_deliveries: A message delivered more often than this is not run again. None means no limit.
        max_lease_s: Longest time that the lease of a running handler is extended.
        grace_s: How long running handlers may continue after a stop.
        max_reconnects: Consecutive reconnect attempts before the engine gives up.
        reconnect: Delay between reconnect attempts.
        outage: Pause after the handler raises ``InfrastructureError``; see ``outage.py``.
        recreate_group: Recreate a lost group (from the stream's beginning) instead of stopping.
        max_payload_bytes: Larger entries are malformed.
        decode: Reads entries that other programs write with several plain fields: a function from names and values
            (bytes) to ``message.data``. It runs on the event loop and must not wait. None accepts one field ``data``
            with a JSON object.
        priorities: Level of a stream, 0 if not named. While a stream of a higher level is full, all lower
            streams together get a quarter of the read entries, at every concurrency.
        retention: How long entries stay in the streams after every group has acknowledged them. None removes none:
            the streams may belong to other programs. A ``Processor`` has its own setting and refuses this one.
        log_tracebacks: Log whole tracebacks of handlers. They end in exception texts, which may quote messages.
        report_activity: Write the process and its counts to Redis with each renewal of the liveness key, for the
            dashboard. A ``Processor`` always does.
    """

    block_ms: int = 5_000
    claim_idle_ms: int = CLAIM_IDLE_MS
    prefetch: int = 128
    max_deliveries: int | None = 20
    max_lease_s: float = 3_600.0
    grace_s: float = 25.0
    max_reconnects: int = 30
    reconnect: Backoff = field(default_factory=lambda: Backoff(base_s=0.05, cap_s=5.0))
    outage: Backoff = field(default_factory=lambda: Backoff(base_s=1.0, cap_s=30.0))
    recreate_group: bool = False
    max_payload_bytes: int = 1_048_576
    decode: Decode | None = None
    priorities: Mapping[str, int] = field(default_factory=dict)
    retention: Retention | None = None
    log_tracebacks: bool = False
    report_activity: bool = False

    def __post_init__(self) -> None:
        require_positive("block_ms", self.block_ms)
        if require_positive("claim_idle_ms", self.claim_idle_ms) > RELEASED_IDLE_MS:
            raise ConfigurationError(
                f"claim_idle_ms must be at most {RELEASED_IDLE_MS}, a day, got {self.claim_idle_ms}: "
                "a message that is released at a stop gets that idle time"
            )
        require_positive("prefetch", self.prefetch, zero_allowed=True)
        if self.max_deliveries is not None:
            require_positive("max_deliveries", self.max_deliveries)
        require_seconds("max_lease_s", self.max_lease_s)
        require_seconds("grace_s", self.grace_s, zero_allowed=True)
        require_positive("max_reconnects", self.max_reconnects)
        require_positive("max_payload_bytes", self.max_payload_bytes)
        for name in ("reconnect", "outage"):
            require_instance(name, getattr(self, name), Backoff)
        for name in ("recreate_group", "log_tracebacks", "report_activity"):
            require_bool(name, getattr(self, name))
        require_decode(self.decode)
        require_retention(self.retention)
        _require_priorities(self.priorities)

    @property
    def claim_idle_s(self) -> float:
        """``claim_idle_ms`` in seconds."""
        return self.claim_idle_ms / 1000

    @property
    def heartbeat_s(self) -> float:
        """Time between two extensions: two may fail before a message becomes stale."""
        return self.claim_idle_s / 3

    @property
    def heartbeat_timeout_s(self) -> float:
        """Timeout of an extension. Two servers that do not reply must not cost the leases on the others."""
        return min(SOCKET_TIMEOUT_S, max(1.0, self.heartbeat_s / 2))

    @property
    def slice_ms(self) -> int:
        """Longest single BLOCK. Short compared to ``claim_idle_ms``, because a lease starts before the read."""
        return max(1, min(self.block_ms, 1_000, self.claim_idle_ms // 4))


def _require_priorities(priorities: object) -> None:
    if not isinstance(priorities, Mapping):
        raise ConfigurationError("priorities must be a mapping of stream names to integers")
    for stream, level in priorities.items():
        require_text("priorities", stream)
        if isinstance(level, bool) or not isinstance(level, int):
            raise ConfigurationError("a priority must be an integer")


def settings_from(settings: RuntimeSettings | None, options: dict[str, Any]) -> RuntimeSettings:
    """Return ``settings``, or settings built from ``options``, or the defaults."""
    if settings is not None:
        if options:
            raise ConfigurationError("pass settings or single options, not both")
        return require_instance("settings", settings, RuntimeSettings)
    unknown = options.keys() - {known.name for known in fields(RuntimeSettings)}
    if unknown:
        raise ConfigurationError(f"no such option of runtime.Consumer: {', '.join(sorted(unknown))}")
    return RuntimeSettings(**options)


def require_streams(streams: object) -> tuple[str, ...]:
    """Return the streams as a tuple. Require at least one, each a valid name, without duplicates."""
    if isinstance(streams, str) or not isinstance(streams, list | tuple) or not streams:
        raise ConfigurationError("streams must be a list of at least one stream name")
    names = tuple(require_text("streams", name) for name in streams)
    if len(set(names)) != len(names):
        raise ConfigurationError("streams must not name a stream twice")
    return names
