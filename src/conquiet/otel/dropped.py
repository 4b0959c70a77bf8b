"""Spans of messages whose trace is sampled out: known without asking the SDK, where its own samplers are used.

The SDK needs several microseconds to find out that a span is not recorded: more than the engine needs for a message.
The answer of its own samplers is known beforehand in two cases: the sender's trace was dropped and the sampler follows
the sender, or the sampler drops everything. Any other sampler is asked.

Nothing is recorded, but the decision travels on: a message that the handler emits carries a context that is not
sampled.

See docs/decisions/0059.
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

_PARENT: Final = "traceparent"
_PARENT_LENGTH: Final = 55
_DROPPED_PARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-00").fullmatch
_OFF: Final = "AlwaysOffSampler"
_DROPS_ALL: Final = frozenset({_OFF, "TraceIdRatioBased{0.0}"})
_FOLLOWS_SENDER: Final = re.compile(r"ParentBased\{root:([^,]*),.*remoteParentNotSampled:AlwaysOffSampler,.*\}")
_NOT_SAMPLED: Final = TraceFlags(0)
(_SPAN_KEY,) = trace.set_span_in_context(trace.INVALID_SPAN, otel_context.Context())

Ended = Callable[[float, dict[str, Any]], None]


def counts_nothing(provider: object) -> bool:
    """Return whether metrics of this provider go nowhere: none was set, or the one that does nothing."""
    return isinstance(provider, NoOpMeterProvider) or type(provider).__name__ == "_ProxyMeterProvider"


class DropRules:
    """What a tracer's sampler certainly drops, read from its description.

    Args:
        tracer: The tracer; any but the SDK's own has no sampler, and is always asked.

    Attributes:
        roots: Whether a span without a sender is dropped.
        followed: Whether a span is dropped if its sender's was.
    """

    def __init__(self, tracer: trace.Tracer) -> None:
        sampler = getattr(tracer, "sampler", None)
        described = str(sampler.get_description()) if sampler is not None else ""
        follows = _FOLLOWS_SENDER.fullmatch(described)
        reads_it = _PARENT in propagate.get_global_textmap().fields
        self.followed = reads_it and (follows is not None or described == _OFF)
        self.roots = (follows[1] if follows is not None else described) in _DROPS_ALL

    def drops(self, headers: tracing.Headers | None) -> bool:
        """Return whether the span of a message with these headers is certainly dropped; else the sampler is asked."""
        if headers is None:
            return self.roots
        # tracestate, baggage, or the header of another propagator: for the SDK.
        if not self.followed or len(headers) != 1 or (sender := headers.get(_PARENT)) is None:
            return False
        # The ids are read when they are needed: what is none becomes a new trace, dropped too.
        return len(sender) == _PARENT_LENGTH and sender[:3] == "00-" and sender[-3:] == "-00"


class DroppedSpan(NonRecordingSpan):
    """Implements ``core.tracing.Span``, and OpenTelemetry's, for a span that is not recorded nor counted.

    One object for both, because one is made for each message. Its ids are made when something asks for them.
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
        """Return the context: of the sender's trace, or of a new one."""
        if self._own is None:
            found = None if self.sender is None else _DROPPED_PARENT(self.sender)
            trace_id = secrets.randbits(128) or 1 if found is None else int(found[1], 16)
            self._own = SpanContext(trace_id, secrets.randbits(64) or 1, is_remote=False, trace_flags=_NOT_SAMPLED)
        return self._own

    @property
    def headers(self) -> dict[str, str]:
        """The context; see ``core.tracing.Span``."""
        found = self.get_span_context()
        return {_PARENT: f"00-{found.trace_id:032x}-{found.span_id:016x}-00"}

    def set(self, name: str, value: object) -> None:
        """Do nothing."""

    def fail(self, error: BaseException) -> None:
        """Do nothing."""

    def make_current(self) -> None:
        """Make it current as long as the context variables live."""
        otel_context.attach(otel_context.Context({_SPAN_KEY: self}))

    def __enter__(self) -> Self:
        self._token = otel_context.attach(otel_context.Context({_SPAN_KEY: self}))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_back: TracebackType | None
    ) -> None:
        otel_context.detach(self._token)


class WorkerSpan(NonRecordingSpan):
    """Stands for the dropped span of whichever message the worker handles; current in the whole worker.

    Making a span current costs a microsecond, a tenth of what the processor needs for a message. Context variables are
    copied for each message for nothing. Outside of a handler it is no span.

    Args:
        follows_sender: Whether the span of a message belongs to the trace of its sender.
    """

    def __init__(self, *, follows_sender: bool) -> None:
        self._follows_sender = follows_sender

    def __repr__(self) -> str:
        return "WorkerSpan()"

    def get_span_context(self) -> SpanContext:
        """Return the context of the message that is handled here; an invalid one if there is none."""
        handling = causation.current()
        if handling is None or tracing.active is None:
            return trace.INVALID_SPAN_CONTEXT
        if handling.span_context is None:
            sender = handling.headers.get(_PARENT) if self._follows_sender else None
            handling.span_context = DroppedSpan(sender).get_span_context()
        found: SpanContext = handling.span_context
        return found

    def make_current(self) -> None:
        """Make it current as long as the context variables live."""
        otel_context.attach(otel_context.Context({_SPAN_KEY: self}))


class CountedDroppedSpan(DroppedSpan):
    """The same with metrics: the run is counted, and its duration measured."""

    def __init__(self, sender: str | None, ended: Ended, labels: dict[str, Any]) -> None:
        super().__init__(sender)
        self._ended = ended
        self._labels = labels
        self._failed: str | None = None

    def fail(self, error: BaseException) -> None:
        """Note the failure for the metrics."""
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
