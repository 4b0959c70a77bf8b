"""Settle and report messages with an event that has no handler in this process. ``unknown_policy`` decides."""

from collections.abc import Collection

from conquiet.core.log import FactLogger
from conquiet.core.seen_ids import SeenIds
from conquiet.core.settlement import ACKNOWLEDGE, DeadLetter, Settlement
from conquiet.processor.envelope import Envelope
from conquiet.processor.jobs import JobState
from conquiet.processor.parts import ProcessorParts
from conquiet.processor.policy import Reject
from conquiet.processor.unknown_policy import UNKNOWN_FATES, decide_unknown
from conquiet.runtime.message import RuntimeMessage

logger = FactLogger(__name__)

_UNKNOWN = "no handler is registered for its event"


class UnknownEvents:
    """Settles messages without a handler and logs each unknown event once.

    Args:
        parts: The parts that a processor shares. The settings hold the policy for unknown events.
        known: Events that have a handler, for the log.
    """

    def __init__(self, parts: ProcessorParts, known: Collection[str]) -> None:
        self._known = known
        self._keys, self._settings = parts.keys, parts.settings
        self._clock, self._jobs = parts.clock, parts.jobs
        self._reported = SeenIds()

    async def decide(self, message: RuntimeMessage, envelope: Envelope) -> Settlement:
        """Return the settlement of a message without a handler."""
        settlement = decide_unknown(
            self._settings.unknown_on(message.stream),
            grace_s=self._settings.unknown_grace_s,
            since_ms=envelope.unknown_since_ms,
            now_ms=self._clock.now_ms(),
        )
        if self._reported.add(message.stream, envelope.event):  # once per event
            logger.warning(
                "no handler for event %(event_name)s of message %(message_id)s: %(fate)s. Known: %(known)s",
                event_name=envelope.event,
                message_id=message.id,
                fate=UNKNOWN_FATES[type(settlement)],
                known=", ".join(self._known),
                stream=message.stream,
            )
        if settlement is ACKNOWLEDGE and self._jobs is not None:
            await self._jobs.record(self._keys[message.stream], envelope, JobState.DEAD)
        if isinstance(settlement, DeadLetter):
            return DeadLetter(settlement.reason, Reject(_UNKNOWN), _UNKNOWN)
        return settlement
