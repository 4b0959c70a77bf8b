"""Create the spans of syncer runs, if tracing is installed; see ``core.tracing``."""

from collections.abc import Sequence

from conquiet.core import tracing
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.syncer import ContractBroken, Refused


class RefusedBySyncer(Exception):  # noqa: N818 - never raised: its name is the span's error type
    """The syncer returned False, or broke its contract."""


def process_span(active: tracing.Tracing, delivery: Delivery) -> tracing.Span:
    """Return the span of one run of a syncer."""
    return active.process(
        "rabbitmq",
        delivery.queue,
        message_id=delivery.message_id,
        attempt=delivery.facts.attempt,
        headers=tracing.read_headers(delivery.headers),
    )


def record_report(span: tracing.Span, report: object) -> None:
    """Record the result of the syncer."""
    span.set("conquiet.settlement", type(report).__name__.lower())
    if isinstance(report, Refused | ContractBroken):
        span.fail(RefusedBySyncer())


def batch_span(deliveries: Sequence[Delivery]) -> tracing.Span:
    """Return the span of a batch, linked to the sender of each delivery."""
    return tracing.batch_span("rabbitmq", deliveries[0].queue, lambda: [_member(each) for each in deliveries])


def _member(delivery: Delivery) -> tracing.BatchMember:
    return tracing.BatchMember(delivery.message_id, tracing.read_headers(delivery.headers))
