"""Settings of a processor, validated when they are built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

from conquiet.core.backoff import Backoff
from conquiet.core.batching import BatchSettings
from conquiet.core.functions import require_arguments, warn_if_pool_is_smaller
from conquiet.core.validation import require_instance, require_positive, require_seconds
from conquiet.errors import ConfigurationError
from conquiet.processor.foreign_format import EnvelopeFormat
from conquiet.processor.policy import RateLimit, RetryPolicy, require_count, require_event
from conquiet.queue.retention import Retention, require_retention
from conquiet.redis_transport.replica_wait import ReplicaWait
from conquiet.runtime.settings import RuntimeSettings

_OUR_ADDITIONS: Final = 4_096
"""Maximum number of bytes that a retry adds to a message: group, times, ids."""

Unknown = Literal["dead_letter", "leave", "ignore"]
"""Policies for messages with an event that has no handler in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSettings:
    """Optional settings of ``Processor``.

    Attributes:
        retry: Policy of handlers without a policy. The default is no retry.
        dedupe_window_s: How long an id passed to ``emit`` counts as emitted.
        chunk_size: Maximum number of messages of one atomic ``emit_many`` step, and of one step that moves due
            messages.
        dead_letters_max: Maximum number of dead letters per stream. None keeps all.
        dead_letters_max_age_s: Maximum age of a dead letter. None keeps all. The next poll deletes older ones, see
            ``refresh_s``.
        store_error_text: Store the text of any exception in the dead letter. Off by default, because such texts often
            quote the message. The type and the traceback are always stored.
        refresh_s: Longest time between two polls for pauses and due messages without a wake-up; up to eight times as
            long for a quiet stream, because every change to it writes a wake-up.
        settle_attempts: How often a retry or dead letter is sent if its reply is lost. The step is idempotent, so
            repeating it is safe.
        settle_backoff: Delay between these attempts.
        job_ttl_s: How long the state of a job is kept after its end. None keeps no job states.
        max_payload_bytes: Maximum size of an emitted message, encoded. The engine reads messages of at least this
            size, even if ``RuntimeSettings.max_payload_bytes`` is smaller.
        unknown: Policy for messages with an event that has no handler in this process: one policy, or one per stream
            (default: "dead_letter"). "dead_letter" waits ``unknown_grace_s`` for a process that has the handler.
            "leave" waits indefinitely. "ignore" acknowledges the message without running anything.
        unknown_grace_s: How long "dead_letter" waits. A rolling deploy that adds an event takes minutes, during which
            old processes read messages of the new event. 0 dead-letters immediately.
        foreign_limit: Stop the processor if the first ``foreign_limit`` entries of a stream are not Processor messages.
            None never stops.
        max_attempts_limit: Upper limit for ``max_attempts`` of a message if the policy of its handler allows fewer.
            None: the policy is the limit for every producer.
        replicas: Number of replicas that must have a message before ``emit`` returns. 0 does not wait. A call may pass
            another number.
        replicas_timeout_s: Timeout for the replicas, after which ``emit`` raises ``NotReplicatedError``.
        retention: How long entries stay in the streams after every group has acknowledged them. On by default. None
            removes neither entries nor consumers of ended processes.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    dedupe_window_s: float = 86_400.0
    chunk_size: int = 500
    dead_letters_max: int | None = None
    dead_letters_max_age_s: float | None = None
    store_error_text: bool = False
    refresh_s: float = 1.0
    settle_attempts: int = 8
    settle_backoff: Backoff = field(default_factory=lambda: Backoff(base_s=0.05, cap_s=2.0))
    job_ttl_s: float | None = None
    max_payload_bytes: int = 1_048_576
    unknown: Unknown | Mapping[str, Unknown] = "dead_letter"
    unknown_grace_s: float = 300.0
    foreign_limit: int | None = 20
    max_attempts_limit: int | None = None
    retention: Retention | None = field(default_factory=Retention)
    replicas: int = 0
    replicas_timeout_s: float = 1.0

    def __post_init__(self) -> None:
        require_instance("retry", self.retry, RetryPolicy)
        require_instance("settle_backoff", self.settle_backoff, Backoff)
        require_seconds("dedupe_window_s", self.dedupe_window_s)
        require_positive("chunk_size", self.chunk_size)
        if self.dead_letters_max is not None:
            require_count("dead_letters_max", self.dead_letters_max)
        if self.dead_letters_max_age_s is not None:
            require_seconds("dead_letters_max_age_s", self.dead_letters_max_age_s)
        if self.job_ttl_s is not None:
            require_seconds("job_ttl_s", self.job_ttl_s)
        require_seconds("refresh_s", self.refresh_s)
        require_positive("settle_attempts", self.settle_attempts)
        require_positive("max_payload_bytes", self.max_payload_bytes)
        for policy in self.unknown.values() if isinstance(self.unknown, Mapping) else (self.unknown,):
            if policy not in get_args(Unknown):
                raise ConfigurationError(
                    f"unknown must be one of {', '.join(get_args(Unknown))}, or a mapping from stream to one of them"
                )
        require_seconds("unknown_grace_s", self.unknown_grace_s, zero_allowed=True)
        if self.foreign_limit is not None:
            require_positive("foreign_limit", self.foreign_limit)
        if self.max_attempts_limit is not None:
            require_count("max_attempts_limit", self.max_attempts_limit)
        require_retention(self.retention)
        self.replica_wait()

    def replica_wait(self, replicas: int | None = None) -> ReplicaWait:
        """Return the wait for this number of replicas. None uses the setting."""
        return ReplicaWait(self.replicas if replicas is None else replicas, self.replicas_timeout_s)

    def unknown_on(self, stream: str) -> Unknown:
        """Return the policy for events without a handler on a stream."""
        if isinstance(self.unknown, Mapping):
            return self.unknown.get(stream, "dead_letter")
        return self.unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSettings:
    """One registered handler.

    Attributes:
        event: Its event.
        function: Called with a ``JobContext``: ``async def``, or a plain function, which runs in a thread.
        retry: Its policy.
        timeout_s: Longest run. None means no limit.
        concurrency: Maximum number of concurrent runs on this host. None: only the limit of the processor applies.
        rate: Maximum number of starts per period, over all hosts. None means no limit.
        batch: Size and deadline of batches, for a function that takes a list of ``JobContext``. None for single calls.
    """

    event: str
    function: Callable[..., Any]
    retry: RetryPolicy
    timeout_s: float | None = None
    concurrency: int | None = None
    rate: RateLimit | None = None
    batch: BatchSettings | None = None

    def __post_init__(self) -> None:
        require_event(self.event)
        if not callable(self.function):
            raise ConfigurationError("a handler must be callable")
        require_arguments("handler", self.function, "ctx" if self.batch is None else "contexts")
        require_instance("retry", self.retry, RetryPolicy)
        if self.timeout_s is not None:
            require_seconds("timeout_s", self.timeout_s)
        if self.concurrency is not None:
            require_positive("concurrency", self.concurrency)
        if self.rate is not None:
            require_instance("rate", self.rate, RateLimit)
            if self.batch is not None:
                raise ConfigurationError(
                    f"the handler of {self.event!r} has a rate and a batch: a rate counts single starts, and a batch "
                    "starts all its messages at once. Leave one of them out"
                )

    def compare_pool(self, concurrency: int) -> None:
        """Log a warning if the handler's connection pool is smaller than the number of concurrent runs."""
        warn_if_pool_is_smaller(self.function, min(self.concurrency or concurrency, concurrency))


def engine_settings(settings: ProcessorSettings, runtime: RuntimeSettings) -> RuntimeSettings:
    """Return the settings of a processor's engine.

    The engine must read every message that may be emitted, and its retries, which are larger by ``_OUR_ADDITIONS``.
    ``decode`` is called only for entries that are not envelopes.
    """
    if runtime.retention is not None:
        raise ConfigurationError(
            "retention of RuntimeSettings has no effect in a Processor: give ProcessorSettings(retention=...)"
        )
    most = max(runtime.max_payload_bytes, settings.max_payload_bytes) + _OUR_ADDITIONS
    decode = None if runtime.decode is None else EnvelopeFormat(runtime.decode)
    return replace(runtime, max_payload_bytes=most, decode=decode, retention=settings.retention, report_activity=True)
