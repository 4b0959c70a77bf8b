"""Make spans and metrics for ``core.tracing``. No payload, no exception text.

    request ─▶ outbox row ─▶ relay: send ─▶ stream ─▶ process ─▶ send ─▶ queue ─▶ process      one trace
                (headers)      producer     (headers)  consumer   producer (headers)  consumer

The span of a single message is a child of the span that sent it; with ``context="link"`` it begins a new trace and
links to that span. A batch links to each of its messages. A retry links to the first attempt.

See docs/decisions/0058.
"""

import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry import context as otel_context
from opentelemetry import metrics, propagate, trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from conquiet._version import __version__
from conquiet.core import tracing
from conquiet.errors import ConfigurationError
from conquiet.otel import conventions as names
from conquiet.otel.dropped import PARENT, CountedDroppedSpan, DroppedSpan, DropRules, WorkerSpan, counts_nothing

_SCOPE: Final = "conquiet"
_LABELS: Final = frozenset({names.SYSTEM, names.DESTINATION, names.OPERATION_NAME, names.GROUP})
_MOST_LABELS: Final = 1_000


_prepared: ContextVar[object] = ContextVar("conquiet_traced_worker", default=None)
"""The instrumentation that made its ``WorkerSpan`` current here."""


class ContextMode(Enum):
    """The relation of a handler's span to the span that sent its message."""

    CHILD = "child"
    LINK = "link"


def instrument(
    *,
    tracer_provider: Any = None,
    meter_provider: Any = None,
    context: str = "child",
) -> None:
    """Trace messages from now on, in this process. Call it before workers are built; a second call replaces the first.

    Args:
        tracer_provider: The global one if left out.
        meter_provider: The global one if left out. Set it before this call: without it, dropped spans are not counted.
        context: ``child``, or ``link``: a new trace for each handler, linked to the sender.

    Raises:
        ConfigurationError: ``context`` has another value.
    """
    try:
        mode = ContextMode(context)
    except ValueError:
        raise ConfigurationError("context must be 'child' or 'link'") from None
    tracer = trace.get_tracer(_SCOPE, __version__, tracer_provider)
    meter = metrics.get_meter(_SCOPE, __version__, meter_provider)
    counts = not counts_nothing(meter_provider or metrics.get_meter_provider())
    tracing.install(_Instrumentation(tracer, _Instruments(meter), mode, counts=counts))


def uninstrument() -> None:
    """Remove what ``instrument`` has installed. Later messages have no spans."""
    tracing.install(None)


class _Instruments:
    """The metrics of the conventions."""

    def __init__(self, meter: metrics.Meter) -> None:
        self.sent = meter.create_counter(names.SENT_MESSAGES, "{message}", "Messages sent")
        self.consumed = meter.create_counter(names.CONSUMED_MESSAGES, "{message}", "Messages delivered to handlers")
        self.operation = meter.create_histogram(names.OPERATION_DURATION, "s", "Duration of a call of the broker")
        self.process = meter.create_histogram(names.PROCESS_DURATION, "s", "Duration of a handler")

    def record_sent(self, number: int, duration_s: float, labels: dict[str, Any]) -> None:
        """Count messages that were sent by one call."""
        self.sent.add(number, labels)
        self.operation.record(duration_s, labels)

    def record_processed(self, number: int, duration_s: float, labels: dict[str, Any]) -> None:
        """Count messages that were handled by one call."""
        self.consumed.add(number, labels)
        self.process.record(duration_s, labels)


class _Instrumentation:
    """Implements ``core.tracing.Tracing``."""

    def __init__(self, tracer: trace.Tracer, instruments: _Instruments, mode: ContextMode, *, counts: bool) -> None:
        self._tracer = tracer
        self._instruments = instruments
        self._ended_one = partial(instruments.record_processed, 1)
        self._mode = mode
        self._counts = counts
        rules = DropRules(tracer)
        self.traces_roots = counts or not rules.roots
        # With links each message begins a new trace, even if the trace of its sender was dropped.
        is_child = mode is ContextMode.CHILD
        self._drops = rules.drops if is_child else lambda _headers: rules.roots
        self._worker_span = WorkerSpan(follows_sender=is_child)
        self._kept_labels: dict[tuple[str, str, str | None], dict[str, Any]] = {}

    def enter_worker(self) -> None:
        if not self._counts:
            self._worker_span.make_current()
            _prepared.set(self)

    def covers(self, headers: tracing.Headers | None) -> bool:
        return _prepared.get() is self and self._drops(headers)

    def send(
        self,
        system: str,
        destination: str,
        *,
        event: str | None = None,
        message_id: str | None = None,
        headers: tracing.Headers | None = None,
        parent: tracing.Headers | None = None,
        count: int | None = None,
    ) -> "_OtelSpan":
        facts = {names.MESSAGE_ID: message_id, names.EVENT: event, names.BATCH_SIZE: count}
        attributes = _attributes(system, destination, names.SEND, facts)
        parent_context = None if parent is None else propagate.extract(parent)
        ended = partial(self._instruments.record_sent, count or 1)
        return _OtelSpan(
            self._tracer, f"send {destination}", SpanKind.PRODUCER, attributes, ended, parent_context, carried=headers
        )

    def process(  # noqa: PLR0913 - facts of a message
        self,
        system: str,
        destination: str,
        *,
        message_id: str | None = None,
        event: str | None = None,
        group: str | None = None,
        attempt: int | None = None,
        headers: tracing.Headers | None = None,
        first_attempt: str | None = None,
        batch: Sequence[tracing.BatchMember] | None = None,
    ) -> "_OtelSpan | DroppedSpan":
        if batch is None and first_attempt is None and self._drops(headers):
            sender = None if headers is None or self._mode is ContextMode.LINK else headers.get(PARENT)
            if not self._counts:
                return DroppedSpan(sender)
            return CountedDroppedSpan(sender, self._ended_one, self._labels(system, destination, group))
        facts = {
            names.MESSAGE_ID: message_id,
            names.EVENT: event,
            names.GROUP: group,
            names.ATTEMPT: attempt,
            names.BATCH_SIZE: None if batch is None else len(batch),
        }
        attributes = _attributes(system, destination, names.PROCESS, facts)
        links = [] if batch is None else _batch_links(batch)
        parent: Any = otel_context.Context()  # not the span that may be current in the worker
        if headers is not None:
            if batch is None and self._mode is ContextMode.CHILD:
                parent = propagate.extract(headers, parent)
            else:
                links += _links(headers)
        if first_attempt is not None:
            links += _links({PARENT: first_attempt})
        ended = partial(self._instruments.record_processed, 1 if batch is None else len(batch))
        return _OtelSpan(
            self._tracer, f"process {destination}", SpanKind.CONSUMER, attributes, ended, parent, links=links
        )

    def _labels(self, system: str, destination: str, group: str | None) -> dict[str, Any]:
        """Return the labels of a handler's metrics; one set per stream or queue."""
        found = self._kept_labels.get((system, destination, group))
        if found is None:
            found = _metric_labels(_attributes(system, destination, names.PROCESS, {names.GROUP: group}))
            if len(self._kept_labels) < _MOST_LABELS:
                self._kept_labels[system, destination, group] = found
        return found

    def settle(self, system: str, destination: str, *, operation: str, message_id: str | None = None) -> "_OtelSpan":
        facts = {names.OPERATION_NAME: operation, names.MESSAGE_ID: message_id}
        attributes = _attributes(system, destination, names.SETTLE, facts)
        record = self._instruments.operation.record
        return _OtelSpan(self._tracer, f"{operation} {destination}", SpanKind.CLIENT, attributes, record)

    def inject(self, headers: tracing.Headers | None) -> dict[str, str] | None:
        carried = {} if headers is None else dict(headers)
        propagate.inject(carried)
        return carried or None

    def note(self, name: str, value: object) -> None:
        trace.get_current_span().set_attribute(f"conquiet.{name}", _plain(value))


class _OtelSpan:
    """Implements ``core.tracing.Span``."""

    __slots__ = ("_attributes", "_began", "_carried", "_ended", "_failed", "_span", "_token")

    def __init__(
        self,
        tracer: trace.Tracer,
        name: str,
        kind: SpanKind,
        attributes: dict[str, Any],
        ended: Any,
        parent: Any = None,
        *,
        carried: tracing.Headers | None = None,
        links: list[Link] | None = None,
    ) -> None:
        self._attributes = attributes
        self._carried = carried
        self._ended = ended
        self._failed: str | None = None
        self._token: Any = None
        self._began = time.monotonic()
        # Exceptions are recorded by fail(), without their text.
        self._span = tracer.start_span(name, parent, kind, attributes, links, record_exception=False)

    @property
    def is_dropped(self) -> bool:
        return not self._span.is_recording()

    @property
    def headers(self) -> dict[str, str]:
        carried = {} if self._carried is None else dict(self._carried)
        propagate.inject(carried, trace.set_span_in_context(self._span))
        return carried

    def set(self, name: str, value: object) -> None:
        self._span.set_attribute(name, _plain(value))

    def fail(self, error: BaseException) -> None:
        self._failed = type(error).__name__
        self._span.set_attribute(names.ERROR_TYPE, type(error).__qualname__)
        self._span.set_status(Status(StatusCode.ERROR))

    def __enter__(self) -> Self:
        self._token = otel_context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_back: TracebackType | None
    ) -> None:
        if self._token is not None:
            otel_context.detach(self._token)
        if error is not None and self._failed is None:
            self.fail(error)
        self._span.end()
        labels = _metric_labels(self._attributes)
        if self._failed is not None:
            labels[names.ERROR_TYPE] = self._failed
        self._ended(time.monotonic() - self._began, labels)


def _attributes(system: str, destination: str, operation: str, facts: Mapping[str, str | int | None]) -> dict[str, Any]:
    """Return the attributes of a span: the common ones and the known facts, which may name the operation."""
    return {
        names.SYSTEM: system,
        names.DESTINATION: destination,
        names.OPERATION_TYPE: operation,
        names.OPERATION_NAME: operation,
        **{name: value for name, value in facts.items() if value is not None},
    }


def _metric_labels(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes with few values, which are labels of metrics as well."""
    return {name: value for name, value in attributes.items() if name in _LABELS}


def _links(headers: Mapping[str, str], message_id: str | None = None) -> list[Link]:
    """Return a link to the span that wrote these headers, if they name one."""
    found = trace.get_current_span(propagate.extract(headers, otel_context.Context())).get_span_context()
    attributes = None if message_id is None else {names.MESSAGE_ID: message_id}
    return [Link(found, attributes)] if found.is_valid else []


def _batch_links(batch: Sequence[tracing.BatchMember]) -> list[Link]:
    """Return the links of a batch: to the sender of each message, and to its first attempt."""
    links: list[Link] = []
    for member in batch:
        if member.headers is not None:
            links += _links(member.headers, member.message_id)
        if member.first_attempt is not None:
            links += _links({PARENT: member.first_attempt}, member.message_id)
    return links


def _plain(value: object) -> str | int | float | bool:
    return value if isinstance(value, str | int | float | bool) else str(value)
