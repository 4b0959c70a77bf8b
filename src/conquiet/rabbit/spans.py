"""Create the spans of syncer runs, if tracing is installed; see ``core.tracing``."""

from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from conquiet.core import tracing
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.syncer import ContractBroken, Refused


class ProcessSpan:
    """The span of one run of a syncer."""

    __slots__ = ("_span",)

    def __init__(self, span: tracing.Span | None) -> None:
        self._span = span

    def record(self, report: object) -> None:
        """Record the result of the syncer."""
        if self._span is None:
            return
        self._span.set("conquiet.settlement", type(report).__name__.lower())
        if isinstance(report, Refused | ContractBroken):
            self._span.fail(RefusedBySyncer())

    def __enter__(self) -> Self:
        if self._span is not None:
            self._span.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._span is not None:
            self._span.__exit__(kind, error, trace)


class RefusedBySyncer(Exception):  # noqa: N818 - never raised: its name is the span's error type
    """The syncer returned False, or broke its contract."""


NO_SPAN: Final = ProcessSpan(None)


def process_span(delivery: Delivery) -> ProcessSpan:
    """Return the span of a run; without tracing, a shared object that does nothing."""
    if tracing.active is None:
        return NO_SPAN
    return ProcessSpan(
        tracing.active.process(
            "rabbitmq",
            delivery.queue,
            message_id=delivery.message_id,
            attempt=_attempt(delivery),
            headers=tracing.read_headers(delivery.headers),
        )
    )


def batch_span(deliveries: Sequence[Delivery]) -> tracing.Span:
    """Return the span of a batch, linked to the sender of each delivery."""
    return tracing.batch_span("rabbitmq", deliveries[0].queue, lambda: [_member(each) for each in deliveries])


def _member(delivery: Delivery) -> tracing.BatchMember:
    return tracing.BatchMember(delivery.message_id, tracing.read_headers(delivery.headers))


def _attempt(delivery: Delivery) -> int | None:
    """Return the number of this attempt; None if the queue does not count."""
    if not delivery.redelivered:
        return 1
    count = delivery.facts.delivery_count
    return None if not count else count + 1
