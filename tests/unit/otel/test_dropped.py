"""A trace that is sampled out costs little, is dropped as the SDK would drop it, and stays dropped downstream."""

import contextvars
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import SpanContext

from conquiet.core import causation, tracing
from conquiet.core.causation import Handling
from conquiet.otel import instrument, uninstrument
from conquiet.otel.dropped import DroppedSpan

TRACE = "0af7651916cd43dd8448eb211c80319c"
KEPT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
DROPPED = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-00"}
NO_SENDER: dict[str, str] | None = None


class Curious(Sampler):
    """A sampler of the user, which has to be called."""

    def __init__(self) -> None:
        self.asked = 0

    def should_sample(self, *arguments: Any, **options: Any) -> Any:
        self.asked += 1
        return ALWAYS_OFF.should_sample(*arguments, **options)

    def get_description(self) -> str:
        return "Curious"


@pytest.fixture(autouse=True)
def _uninstrumented() -> Iterator[None]:
    yield
    uninstrument()


def begin(
    sampler: Sampler, headers: dict[str, str] | None, **options: Any
) -> tuple[tracing.Span, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrument(tracer_provider=provider, **options)
    assert tracing.active is not None
    return tracing.active.process("redis", "orders", message_id="1-0", group="g", headers=headers), exporter


@pytest.mark.parametrize(
    ("sampler", "headers"),
    [
        (ALWAYS_OFF, NO_SENDER),
        (ALWAYS_OFF, DROPPED),
        (ParentBased(ALWAYS_OFF), NO_SENDER),
        (ParentBasedTraceIdRatio(0.0), NO_SENDER),
        (ParentBasedTraceIdRatio(0.0), DROPPED),
        (ParentBased(ALWAYS_ON), DROPPED),
        (TraceIdRatioBased(0.0), NO_SENDER),
    ],
)
def test_a_span_that_is_certainly_dropped_is_not_requested_from_the_sdk(
    sampler: Sampler, headers: dict[str, str] | None
) -> None:
    span, exporter = begin(sampler, headers)
    assert isinstance(span, DroppedSpan)
    with span:
        inside = trace.get_current_span().get_span_context()
        carried: dict[str, str] = {}
        propagate.inject(carried)
    assert exporter.get_finished_spans() == ()
    assert inside.is_valid
    assert not inside.trace_flags.sampled
    assert carried["traceparent"].endswith("-00"), "the next service follows the decision"
    assert span.headers == carried
    if headers is not None:
        assert TRACE in carried["traceparent"]
    assert not trace.get_current_span().get_span_context().is_valid, "nothing is current after it"


@pytest.mark.parametrize(
    ("sampler", "headers"),
    [
        (ParentBased(ALWAYS_ON), NO_SENDER),
        (ParentBased(ALWAYS_ON), KEPT),
        (ALWAYS_ON, DROPPED),
        (ParentBasedTraceIdRatio(0.0), KEPT),
        (ParentBased(ALWAYS_OFF, remote_parent_not_sampled=ALWAYS_ON), DROPPED),
    ],
)
def test_a_sampled_span_is_recorded(sampler: Sampler, headers: dict[str, str] | None) -> None:
    span, exporter = begin(sampler, headers)
    with span:
        pass
    assert [one.name for one in exporter.get_finished_spans()] == ["process orders"]


@pytest.mark.parametrize("headers", [NO_SENDER, DROPPED, KEPT, {**DROPPED, "baggage": "a=b"}])
def test_a_sampler_of_the_users_own_is_asked_each_time(headers: dict[str, str] | None) -> None:
    sampler = Curious()
    with begin(sampler, headers)[0]:
        pass
    assert sampler.asked == 1
    sampler = Curious()
    with begin(ParentBased(sampler), NO_SENDER)[0]:
        pass
    assert sampler.asked == 1


@pytest.mark.parametrize("broken", ["", "00", "00-xyz-1-00", f"00-{TRACE}-b7ad6b7169203331-zz", f"ff-{TRACE}-0-00"])
def test_a_broken_context_of_a_foreign_sender_begins_a_new_trace(broken: str) -> None:
    span, exporter = begin(ParentBased(ALWAYS_ON), {"traceparent": broken})
    with span:
        pass
    (recorded,) = exporter.get_finished_spans()
    assert recorded.parent is None


def test_a_handler_linked_to_a_dropped_sender_is_recorded_all_the_same() -> None:
    span, exporter = begin(ParentBased(ALWAYS_ON), DROPPED, context="link")
    with span:
        pass
    assert len(exporter.get_finished_spans()) == 1


def test_a_worker_covers_dropped_spans_of_the_tracing_that_it_entered() -> None:
    begin(ParentBased(ALWAYS_ON), NO_SENDER)

    def worker() -> None:
        assert tracing.active is not None
        assert not tracing.active.covers(DROPPED), "not entered yet"
        tracing.active.enter_worker()
        assert tracing.active.covers(DROPPED)
        assert not tracing.active.covers(KEPT)
        assert not tracing.active.covers(NO_SENDER), "a root, which this sampler keeps"
        begin(ParentBased(ALWAYS_ON), NO_SENDER)
        assert not tracing.active.covers(DROPPED), "installed since: the worker has the span of the one before"

    contextvars.copy_context().run(worker)


def test_a_dropped_span_is_current_in_a_context_that_no_worker_entered() -> None:
    span, _ = begin(ParentBased(ALWAYS_ON), DROPPED)

    with span:
        inside = trace.get_current_span().get_span_context()

    assert f"{inside.trace_id:032x}" == TRACE
    assert not inside.trace_flags.sampled
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize(("context", "is_followed"), [("child", True), ("link", False)])
def test_a_worker_has_the_dropped_span_of_each_message(context: str, is_followed: bool) -> None:  # noqa: FBT001
    """Made current once for the worker: it represents the message that is being handled; outside of a handler none."""
    begin(ParentBased(ALWAYS_OFF), NO_SENDER, context=context)
    active = tracing.active
    assert active is not None

    def handler(message: Handling) -> tuple[SpanContext, SpanContext]:
        causation.enter(message)
        return trace.get_current_span().get_span_context(), trace.get_current_span().get_span_context()

    def worker() -> None:
        active.enter_worker()
        assert active.covers(DROPPED)
        seen = set()
        for number in range(3):
            first, again = contextvars.copy_context().run(handler, Sent("orders", str(number), None, None))
            assert first == again
            assert not first.trace_flags.sampled
            assert (f"{first.trace_id:032x}" == TRACE) == is_followed
            assert first.is_valid
            seen.add(first.span_id)
        assert len(seen) == 3
        assert not trace.get_current_span().get_span_context().is_valid, "no message is handled here"
        uninstrument()
        assert not contextvars.copy_context().run(handler, Sent("orders", "1", None, None))[0].is_valid, (
            "tracing is off"
        )

    contextvars.copy_context().run(worker)


class Sent(Handling):
    """A message with a dropped trace of its sender."""

    @property
    def headers(self) -> Mapping[str, str]:
        return DROPPED


def test_a_dropped_span_is_counted_where_there_is_a_meter() -> None:
    reader = InMemoryMetricReader()
    span, _ = begin(ParentBased(ALWAYS_ON), DROPPED, meter_provider=MeterProvider([reader]))
    assert tracing.active is not None
    tracing.active.enter_worker()
    assert not tracing.active.covers(DROPPED), "the short way counts nothing"
    with span:
        span.fail(KeyError("x"))

    data: Any = reader.get_metrics_data()
    metrics = {one.name: one.data.data_points[0] for one in data.resource_metrics[0].scope_metrics[0].metrics}
    assert metrics["messaging.client.consumed.messages"].value == 1
    assert metrics["messaging.process.duration"].count == 1
    assert metrics["messaging.process.duration"].attributes["error.type"] == "KeyError"
