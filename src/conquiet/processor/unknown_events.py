"""Settle and report messages with an event that has no handler in this process. ``unknown_policy`` decides."""

from collections.abc import Collection, Mapping

from conquiet.core.log import FactLogger
from conquiet.core.seen_ids import SeenIds
from conquiet.core.settlement import ACKNOWLEDGE, DeadLetter, Settlement
from conquiet.processor.envelope import Envelope
from conquiet.processor.jobs import JobRecorder, JobState
from conquiet.processor.keys import Keys
from conquiet.processor.policy import Reject
from conquiet.processor.server_clock import ServerClock
from conquiet.processor.settings import ProcessorSettings
from conquiet.processor.unknown_policy import UNKNOWN_FATES, decide_unknown
from conquiet.runtime.message import RuntimeMessage

logger = FactLogger(__name__)

_UNKNOWN = "no handler is registered for its event"


class UnknownEvents:
    """Settles messages without a handler and logs each unknown event once.

    Args:
        known: Events that have a handler, for the log.
        keys: Keys by stream.
        settings: The policy for unknown events.
        clock: The server's clock.
        jobs: Records job states. None if they are not kept.
    """

    def __init__(
        self,
        known: Collection[str],
        *,
        keys: Mapping[str, Keys],
        settings: ProcessorSettings,
        clock: ServerClock,
        jobs: JobRecorder | None,
    ) -> None:
        self._known = known
        self._keys = keys
        self._settings = settings
        self._clock = clock
        self._jobs = jobs
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
