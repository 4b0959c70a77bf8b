"""Spans around the handlers of a processor, if tracing is installed; see ``core.tracing``."""

from collections.abc import Awaitable, Callable

from conquiet.core import tracing
from conquiet.core.settlement import Settlement, settlement_name
from conquiet.processor.envelope import Envelope
from conquiet.processor.handler_runner import HandlerRunner
from conquiet.runtime.context import LeaseManager
from conquiet.runtime.message import RuntimeMessage

Run = Callable[[RuntimeMessage, LeaseManager, Envelope, HandlerRunner], Awaitable[Settlement]]


def traced(run: Run, group: str) -> Run:
    """Return ``run`` with a span around each call."""

    async def run_in_span(
        message: RuntimeMessage, leases: LeaseManager, envelope: Envelope, runner: HandlerRunner
    ) -> Settlement:
        if tracing.active is None:  # it was taken out since
            return await run(message, leases, envelope, runner)
        if (make_current := tracing.active.dropped(envelope.headers)) is not None:
            make_current()  # the context is the message's own, and ends with it
            return await run(message, leases, envelope, runner)
        with tracing.active.process(
            "redis",
            message.stream,
            message_id=envelope.id,
            event=envelope.event,
            group=group,
            attempt=envelope.attempt,
            headers=envelope.headers,
            first_attempt=envelope.first_attempt,
        ) as span:
            settlement = await run(message, leases, envelope, runner)
            if settlement.failure is not None:
                span.fail(settlement.failure)
                if envelope.first_attempt is None:
                    envelope.first_attempt = span.headers.get("traceparent")
            if not span.is_dropped:
                span.set("conquiet.settlement", settlement_name(settlement))
                if message.lease_lost:
                    span.set("conquiet.lease.lost", value=True)
            return settlement

    return run_in_span
