"""How a processor behaves, checked once when it is built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

from conquiet.core.backoff import Backoff
from conquiet.core.batching import BatchSettings
from conquiet.core.functions import require_arguments, warn_if_pool_is_smaller
from conquiet.core.validation import require_positive, require_seconds
from conquiet.errors import ConfigurationError
from conquiet.processor.foreign_format import EnvelopeFormat
from conquiet.processor.policy import RateLimit, RetryPolicy, require_count, require_event
from conquiet.queue.retention import Retention, require_retention
from conquiet.redis_transport.confirmation import Confirmation
from conquiet.runtime.settings import RuntimeSettings

_OUR_ADDITIONS: Final = 4_096
"""Most bytes that a retry adds to a message: group, times, ids."""

Unknown = Literal["dead_letter", "leave", "ignore"]
"""What becomes of a message whose event has no handler here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSettings:
    """Everything about ``Processor`` that has a sensible default.

    Attributes:
        retry: Policy of handlers that bring none. The default is no retry.
        dedupe_window_s: How long an id given to ``emit`` counts as emitted already.
        chunk_size: Most messages of one atomic ``emit_many`` step, and of one step of a mover.
        dead_letters_max: Most dead letters kept per stream; None keeps all.
        dead_letters_max_age_s: Greatest age of a dead letter; None keeps all. Older ones are deleted by the next poll,
            see ``refresh_s``.
        store_error_text: Keep the text of any exception in the dead letter. Off, because such texts
            tend to quote what was in the message; the type and the traceback are always kept.
        refresh_s: Longest time between two looks at pauses and due messages without a wake-up; up to eight times as
            long for a quiet stream, to which all that happens is announced by a wake-up.
        settle_attempts: How often a retry or dead letter is sent when its reply gets lost. The step
            changes nothing the second time, so repeating it is safe.
        settle_backoff: Wait between those.
        job_ttl_s: Keep the state of every job for so long after its end; None keeps no states at all.
        max_payload_bytes: Largest message, encoded, that is emitted. The engine reads at least that much, whatever
            its own limit is.
        unknown: What becomes of a message whose event has no handler here: one policy, or one per stream (streams that
            are not named have "dead_letter"). "dead_letter" waits ``unknown_grace_s`` for a process that has the
            handler. "leave" waits for one without end. "ignore" acknowledges the message without running anything.
        unknown_grace_s: How long "dead_letter" waits. A rolling deploy that adds an event takes minutes, and the old
            processes read the new event's messages meanwhile. 0 dead-letters at once.
        foreign_limit: The processor stops if the first so many entries that it reads from a stream are all no messages
            of a processor; None never stops.
        max_attempts_limit: Most attempts that a message may get by its own ``max_attempts`` where the policy of its
            handler allows fewer. None: never more than the policy, whatever a producer writes.
        replicas: Replicas of the server that must have a message before ``emit`` returns; 0 does not wait. A call may
            ask for another number.
        replicas_timeout_s: How long they may take; then ``emit`` raises ``NotReplicatedError``.
        retention: How long entries stay in the streams after every group has acknowledged them. On by default; None
            removes nothing, and no names of dead consumers either.
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
        if not isinstance(self.retry, RetryPolicy):
            raise ConfigurationError("retry must be a RetryPolicy")
        if not isinstance(self.settle_backoff, Backoff):
            raise ConfigurationError("settle_backoff must be a Backoff")
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
        self.confirmation()

    def confirmation(self, replicas: int | None = None) -> Confirmation:
        """Return how a message is confirmed that asks for so many replicas; None takes the setting."""
        return Confirmation(self.replicas if replicas is None else replicas, self.replicas_timeout_s)

    def unknown_on(self, stream: str) -> Unknown:
        """Return the policy for events without a handler on a stream."""
        if isinstance(self.unknown, Mapping):
            return self.unknown.get(stream, "dead_letter")
        return self.unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSettings:
    """One registered handler.

    Attributes:
        event: The event it is for.
        function: What is called with a ``JobContext``: ``async def``, or a plain function, which runs in a thread.
        retry: Its policy.
        timeout_s: Longest run; None is no limit.
        concurrency: Most runs at once on this host; None is the processor's own limit.
        rate: Most starts in a time, over all hosts; None is no limit.
        batch: How batches are gathered, for a function that is called with a list of ``JobContext``; None for one.
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
        if not isinstance(self.retry, RetryPolicy):
            raise ConfigurationError("retry must be a RetryPolicy")
        if self.timeout_s is not None:
            require_seconds("timeout_s", self.timeout_s)
        if self.concurrency is not None:
            require_positive("concurrency", self.concurrency)
        if self.rate is not None and not isinstance(self.rate, RateLimit):
            raise ConfigurationError("rate must be a RateLimit")
        if self.rate is not None and self.batch is not None:
            raise ConfigurationError(
                f"the handler of {self.event!r} has a rate and a batch: a rate counts single starts, and a batch "
                "starts all its messages at once. Leave one of them out"
            )

    def compare_pool(self, concurrency: int) -> None:
        """Log a warning if the handler's connection pool is smaller than the number of runs at once."""
        warn_if_pool_is_smaller(self.function, min(self.concurrency or concurrency, concurrency))


def engine_settings(settings: ProcessorSettings, runtime: RuntimeSettings) -> RuntimeSettings:
    """Return the settings of a processor's engine.

    What may be emitted may be read, and tried again: a retry is larger by what is written into it. A ``decode`` is
    asked only for entries that are no envelopes.
    """
    most = max(runtime.max_payload_bytes, settings.max_payload_bytes) + _OUR_ADDITIONS
    decode = None if runtime.decode is None else EnvelopeFormat(runtime.decode)
    return replace(runtime, max_payload_bytes=most, decode=decode, report_activity=True)
