"""Exported spans, and a client of the test's Redis."""

from collections.abc import Iterator

import pytest
import redis
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from conquiet.otel import instrument, uninstrument


class Traces:
    """The exported spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.provider = provider
        self.tracer = provider.get_tracer("the application")

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def chain(self, span: ReadableSpan) -> list[str]:
        """Return the names from a span up to the root of its trace."""
        by_id = {one.context.span_id: one for one in self.spans}
        found = [span.name]
        while span.parent is not None:
            span = by_id[span.parent.span_id]
            found.append(span.name)
        return found


@pytest.fixture
def traces() -> Iterator[Traces]:
    made = Traces()
    instrument(tracer_provider=made.provider)
    yield made
    uninstrument()


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as made:
        yield made
