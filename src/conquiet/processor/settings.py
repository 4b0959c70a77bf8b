"""How a processor behaves, checked once when it is built."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from conquiet.errors import ConfigurationError
from conquiet.kernel.backoff import Backoff
from conquiet.kernel.functions import require_arguments
from conquiet.kernel.validation import require_positive, require_seconds
from conquiet.processor.policy import RateLimit, RetryPolicy, require_count, require_event


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSettings:
    """Everything about ``Processor`` that has a sensible default.

    Attributes:
        retry: Policy of handlers that bring none. No retry, because nobody asked for one.
        dedupe_window_s: How long an id given to ``emit`` counts as emitted already.
        chunk_size: Most messages of one atomic ``emit_many`` step, and of one step of a mover.
        dead_letters_max: Most dead letters kept per stream; None keeps all.
        dead_letters_max_age_s: Greatest age of a dead letter; None keeps all. Older ones fall within ``refresh_s``.
        store_error_text: Keep the text of any exception in the dead letter. Off, because such texts
            tend to quote what was in the message; the type and the traceback are always kept.
        refresh_s: Longest time between two looks at pauses and due messages without a wake-up.
        settle_attempts: How often a retry or dead letter is sent when its reply gets lost. The step
            changes nothing the second time, so repeating it is safe.
        settle_backoff: Wait between those.
        job_ttl_s: Keep the state of every job for so long after its end; None keeps no states at all.
        max_payload_bytes: Largest message, encoded, that is emitted. The engine reads at least that much, whatever
            its own limit is.
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
    """

    event: str
    function: Callable[..., Any]
    retry: RetryPolicy
    timeout_s: float | None = None
    concurrency: int | None = None
    rate: RateLimit | None = None

    def __post_init__(self) -> None:
        require_event(self.event)
        if not callable(self.function):
            raise ConfigurationError("a handler must be callable")
        require_arguments("handler", self.function, "ctx")
        if not isinstance(self.retry, RetryPolicy):
            raise ConfigurationError("retry must be a RetryPolicy")
        if self.timeout_s is not None:
            require_seconds("timeout", self.timeout_s)
        if self.concurrency is not None:
            require_positive("concurrency", self.concurrency)
        if self.rate is not None and not isinstance(self.rate, RateLimit):
            raise ConfigurationError("rate must be a RateLimit")
