"""Read the envelope of a message, and settle the messages that have none for this group.

Shared by ``execution`` and ``batch_execution``.
"""

from conquiet.core.settlement import ACKNOWLEDGE, Acknowledge, DeadLetter, Settlement
from conquiet.processor.envelope import Envelope, EnvelopeError, from_payload
from conquiet.processor.foreign import ForeignGuard
from conquiet.processor.policy import Reason
from conquiet.runtime.context import LeaseManager
from conquiet.runtime.executor import PendingSettlement
from conquiet.runtime.message import RuntimeMessage

_EXHAUSTED = "it was delivered too often without being settled: the workers that ran it were killed or hung"


class EnvelopeDecoder:
    """Decodes messages for one consumer group.

    Args:
        group: The consumer group.
        foreign: Settles undecodable entries.
    """

    def __init__(self, group: str, foreign: ForeignGuard) -> None:
        self._group = group
        self._foreign = foreign

    def decode(self, message: RuntimeMessage) -> Envelope | Acknowledge | DeadLetter:
        """Return the envelope of a message. If it has none for this group, return the settlement for ``refuse``."""
        try:
            message.decoded = envelope = from_payload(message.data, entry_id=message.id)
        except EnvelopeError as error:
            return DeadLetter(Reason.NOT_AN_ENVELOPE.value, error, error.reason)
        if message.stream not in self._foreign.ours:
            self._foreign.accept(message.stream)
        if envelope.group is not None and envelope.group != self._group:
            return ACKNOWLEDGE  # another group's retry: this group has already settled the message
        return envelope

    async def refuse(self, message: RuntimeMessage, settlement: Acknowledge | DeadLetter) -> Settlement:
        """Return the settlement of a message that has no envelope for this group."""
        return settlement if isinstance(settlement, Acknowledge) else await self._foreign.decide(message, settlement)

    def exhausted(self, message: RuntimeMessage, leases: LeaseManager) -> PendingSettlement:  # noqa: ARG002
        """Dead-letter a message that was delivered too often: it kills the workers that run it."""
        try:
            message.decoded = envelope = from_payload(message.data, entry_id=message.id)
        except Exception:  # noqa: BLE001 - an undecodable message must be dead-lettered too
            envelope = None
        if envelope is not None and envelope.group not in {None, self._group}:
            return ACKNOWLEDGE  # another group's retry: a replay of a dead letter would deliver it to this group
        return DeadLetter(Reason.DELIVERIES_EXHAUSTED.value, note=_EXHAUSTED)

    def malformed(self, message: RuntimeMessage, leases: LeaseManager) -> PendingSettlement:  # noqa: ARG002
        """Dead-letter the raw fields of an entry that is not JSON in one field ``data``."""
        return self._foreign.decide(message, DeadLetter(Reason.MALFORMED.value, note=message.malformed))
