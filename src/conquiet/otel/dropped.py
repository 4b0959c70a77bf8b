"""Spans of messages that the sampler drops, decided without the SDK where it has a built-in sampler.

The SDK needs several microseconds to decide that a span is not recorded: more than the engine needs for a message.
The decision of a built-in sampler is known beforehand in two cases: the sender's trace was dropped and the sampler
follows the sender, or the sampler drops everything. Any other sampler is called.

Nothing is recorded, but the decision is passed on: a message that the handler emits carries a context that is not
sampled.

See docs/decisions/0058.
"""

import re
import secrets
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from conquiet.core import causation, tracing
from conquiet.otel import conventions as names

PARENT: Final = "traceparent"
_PARENT_LENGTH: Final = 55
_DROPPED_PARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-00").fullmatch
_OFF: Final = "AlwaysOffSampler"
_DROPS_ALL: Final = frozenset({_OFF, "TraceIdRatioBased{0.0}"})
_FOLLOWS_SENDER: Final = re.compile(r"ParentBased\{root:([^,]*),.*remoteParentNotSampled:AlwaysOffSampler,.*\}")
_NOT_SAMPLED: Final = TraceFlags(0)
(_SPAN_KEY,) = trace.set_span_in_context(trace.INVALID_SPAN, otel_context.Context())

Ended = Callable[[float, dict[str, Any]], None]


def counts_nothing(provider: object) -> bool:
    """Return whether this provider discards metrics: none was set, or the no-op provider."""
    return isinstance(provider, NoOpMeterProvider) or type(provider).__name__ == "_ProxyMeterProvider"


class DropRules:
    """The spans that a tracer's sampler certainly drops, read from its description.

    Args:
        tracer: The tracer; a tracer that is not the SDK's has no sampler, and decides for each span.

    Attributes:
        roots: True if a span without a sender is dropped.
        followed: True if a span is dropped when its sender's was dropped.
    """

    def __init__(self, tracer: trace.Tracer) -> None:
        sampler = getattr(tracer, "sampler", None)
        described = str(sampler.get_description()) if sampler is not None else ""
        follows = _FOLLOWS_SENDER.fullmatch(described)
        reads_it = PARENT in propagate.get_global_textmap().fields
        self.followed = reads_it and (follows is not None or described == _OFF)
        self.roots = (follows[1] if follows is not None else described) in _DROPS_ALL

    def drops(self, headers: tracing.Headers | None) -> bool:
        """Return whether the span of a message with these headers is certainly dropped; else the sampler decides."""
        if headers is None:
            return self.roots
        # tracestate, baggage, or the header of another propagator: the SDK decides.
        if not self.followed or len(headers) != 1 or (sender := headers.get(PARENT)) is None:
            return False
        # The ids are read on use: an invalid id becomes a new trace, which is dropped as well.
        return len(sender) == _PARENT_LENGTH and sender[:3] == "00-" and sender[-3:] == "-00"


class DroppedSpan(NonRecordingSpan):
    """Implement ``core.tracing.Span``, and OpenTelemetry's, for a span that is neither recorded nor counted.

    One object implements both, because one is made per message. Its ids are made on first use.
    """

    _own: SpanContext | None = None

    def __init__(self, sender: str | None) -> None:
        self.sender = sender

    def __repr__(self) -> str:
        return f"DroppedSpan({self.sender!r})"

    @property
    def is_dropped(self) -> bool:
        """True; see ``core.tracing.Span``."""
        return True

    def get_span_context(self) -> SpanContext:
        """Return the context: in the sender's trace, or in a new trace."""
        if self._own is None:
            found = None if self.sender is None else _DROPPED_PARENT(self.sender)
            trace_id = secrets.randbits(128) or 1 if found is None else int(found[1], 16)
            self._own = SpanContext(trace_id, secrets.randbits(64) or 1, is_remote=False, trace_flags=_NOT_SAMPLED)
        return self._own

    @property
    def headers(self) -> dict[str, str]:
        """The context; see ``core.tracing.Span``."""
        found = self.get_span_context()
        return {PARENT: f"00-{found.trace_id:032x}-{found.span_id:016x}-00"}

    def set(self, name: str, value: object) -> None:
        """Do nothing."""

    def fail(self, error: BaseException) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        self._token = otel_context.attach(otel_context.Context({_SPAN_KEY: self}))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_back: TracebackType | None
    ) -> None:
        otel_context.detach(self._token)


class WorkerSpan(NonRecordingSpan):
    """Represent the dropped span of the message that the worker handles; current in the whole worker.

    Making a span current costs a microsecond, a tenth of what the processor needs for a message. The copy of the
    context variables, made for each message anyway, costs nothing more. Outside of a handler its context is invalid.

    Args:
        follows_sender: True if the span of a message belongs to the trace of its sender.
    """

    def __init__(self, *, follows_sender: bool) -> None:
        self._follows_sender = follows_sender

    def __repr__(self) -> str:
        return "WorkerSpan()"

    def get_span_context(self) -> SpanContext:
        """Return the context of the message that is handled here; an invalid context if there is none."""
        handling = causation.current()
        if handling is None or tracing.active is None:
            return trace.INVALID_SPAN_CONTEXT
        if handling.span_context is None:
            sender = handling.headers.get(PARENT) if self._follows_sender else None
            handling.span_context = DroppedSpan(sender).get_span_context()
        found: SpanContext = handling.span_context
        return found

    def make_current(self) -> None:
        """Make it current for the lifetime of the context variables."""
        otel_context.attach(otel_context.Context({_SPAN_KEY: self}))


class CountedDroppedSpan(DroppedSpan):
    """A dropped span with metrics: the run is counted, and its duration measured."""

    def __init__(self, sender: str | None, ended: Ended, labels: dict[str, Any]) -> None:
        super().__init__(sender)
        self._ended = ended
        self._labels = labels
        self._failed: str | None = None

    def fail(self, error: BaseException) -> None:
        """Record the failure for the metrics."""
        self._failed = type(error).__name__

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_back: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace_back)
        labels = self._labels
        failed = self._failed if error is None or self._failed is not None else type(error).__name__
        if failed is not None:
            labels = labels | {names.ERROR_TYPE: failed}
        self._ended(time.monotonic() - self._began, labels)
