"""Spans around the handlers of a processor, if tracing is installed; see ``core.tracing``."""

from collections.abc import Awaitable, Callable

from conquiet.core import tracing
from conquiet.core.settlement import Settlement, settlement_name
from conquiet.processor.envelope import Envelope
from conquiet.processor.handler_runner import HandlerRunner
from conquiet.runtime.context import LeaseManager
from conquiet.runtime.message import RuntimeMessage

Run = Callable[[RuntimeMessage, LeaseManager, Envelope, HandlerRunner], Awaitable[Settlement]]


class TracedRun:
    """Runs a message in a span.

    Args:
        run: Runs the message.
    """

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    def choose(self, active: tracing.Tracing, envelope: Envelope) -> Run:
        """Return the function that runs a message: without a span if its trace is sampled out."""
        if (make_current := active.dropped(envelope.headers)) is None:
            return self
        make_current()  # the context belongs to this message and ends with it
        return self._run

    async def __call__(
        self, message: RuntimeMessage, leases: LeaseManager, envelope: Envelope, runner: HandlerRunner
    ) -> Settlement:
        """Run the message in a span."""
        if tracing.active is None:  # removed since
            return await self._run(message, leases, envelope, runner)
        with tracing.active.process(
            "redis",
            message.stream,
            message_id=envelope.id,
            event=envelope.event,
            group=leases.group,
            attempt=envelope.attempt,
            headers=envelope.headers,
            first_attempt=envelope.first_attempt,
        ) as span:
            settlement = await self._run(message, leases, envelope, runner)
            if settlement.failure is not None:
                span.fail(settlement.failure)
                if envelope.first_attempt is None:
                    envelope.first_attempt = span.headers.get("traceparent")
            if not span.is_dropped:
                span.set("conquiet.settlement", settlement_name(settlement))
                if message.lease_lost:
                    span.set("conquiet.lease.lost", value=True)
            return settlement
