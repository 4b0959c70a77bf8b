"""Settle and report messages with an event that has no handler in this process.

    "ignore" ───────────────────────────────────────▶ Acknowledge
    "leave" ────────────────────────────────────────▶ Defer(delay_ms, unknown_since_ms)
    "dead_letter", unknown for less than the grace ─▶ Defer(delay_ms, unknown_since_ms)
    "dead_letter", unknown for longer ──────────────▶ DeadLetter

A deferred message goes to the delayed set and from there to the end of its stream, where any process of the group may
read it. It is then a new entry: no delivery and no attempt is charged. The delay is a quarter of the time for which the
message has been unknown: if half of the processes have the handler, most messages reach one within a second, and a
message without any handler costs two steps per ``LONGEST_MS``.
"""

from collections.abc import Collection

from conquiet.core.log import FactLogger
from conquiet.core.seen_ids import SeenIds
from conquiet.core.settlement import ACKNOWLEDGE, Acknowledge, DeadLetter, Defer, Settlement
from conquiet.processor.envelope import Envelope
from conquiet.processor.jobs import JobState
from conquiet.processor.parts import ProcessorParts
from conquiet.processor.policy import Reason, Reject, milliseconds
from conquiet.processor.settings import Unknown
from conquiet.runtime.message import RuntimeMessage

logger = FactLogger(__name__)

SHORTEST_MS = 250
LONGEST_MS = 30_000
_UNKNOWN = "no handler is registered for its event"
_FATES = {
    Acknowledge: "acknowledged and ignored",
    Defer: "left for a worker that has one",
    DeadLetter: "dead-lettered",
}
"""Descriptions for the log."""


def decide_unknown(
    policy: Unknown, *, grace_s: float, since_ms: int | None, now_ms: int
) -> Acknowledge | Defer | DeadLetter:
    """Return the settlement of a message without a handler in this process.

    Args:
        policy: The policy of the stream.
        grace_s: How long "dead_letter" waits for a process that has the handler.
        since_ms: When the message was first unknown, as stored in it. None the first time.
        now_ms: The server's clock.
    """
    if policy == "ignore":
        return ACKNOWLEDGE
    since_ms = now_ms if since_ms is None else min(since_ms, now_ms)  # any producer may have written it
    age_ms = now_ms - since_ms
    if policy == "dead_letter" and age_ms >= milliseconds(grace_s):
        return DeadLetter(Reason.UNKNOWN_EVENT.value)
    return Defer(min(max(age_ms // 4, SHORTEST_MS), LONGEST_MS), unknown_since_ms=since_ms)


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
                fate=_FATES[type(settlement)],
                known=", ".join(self._known),
                stream=message.stream,
            )
        if settlement is ACKNOWLEDGE and self._jobs is not None:
            await self._jobs.record(self._keys[message.stream], envelope, JobState.DEAD)
        if isinstance(settlement, DeadLetter):
            return DeadLetter(settlement.reason, Reject(_UNKNOWN), _UNKNOWN)
        return settlement
