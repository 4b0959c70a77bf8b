"""The deliveries of ``TestApp``: the context of the real engine, with leases in memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from conquiet.processor.envelope import Envelope
from conquiet.runtime.context import MessageContext
from conquiet.runtime.message import HandlerState, RuntimeMessage


class MemoryLeases:
    """Acknowledges and extends messages that no server holds.

    Args:
        group: The app's consumer group.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        # A day: no other worker can claim the message, and a debugger may stop the handler.
        self.claim_idle_s = 86_400.0

    async def acknowledge(self, message: RuntimeMessage) -> None:
        """See ``LeaseManager``."""
        message.mark_acknowledged()

    async def extend(self, message: RuntimeMessage) -> bool:
        """See ``LeaseManager``."""
        message.leased_at = time.monotonic()
        return True

    def deliver(self, stream: str, entry_id: str, envelope: Envelope) -> MessageContext:
        """Return the context of a delivery, for a handler that starts now."""
        now = time.monotonic()
        message = RuntimeMessage(stream, entry_id, envelope.data, leased_at=now, started_at=now)
        message.progress, message.decoded = HandlerState.RUNNING, envelope
        return MessageContext(message, self)


@contextmanager
def ending(*deliveries: MessageContext) -> Iterator[None]:
    """End these deliveries for the handler: from then on their contexts refuse to acknowledge and to extend."""
    state = HandlerState.FAILED
    try:
        yield
        state = HandlerState.SUCCEEDED
    finally:
        for delivery in deliveries:
            delivery.message.progress = state
