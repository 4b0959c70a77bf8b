"""Cancel the job of a message with a cancellation request when its handler is not running.

See docs/decisions/0046.
"""

from collections.abc import Mapping

from conquiet.core.log import FactLogger
from conquiet.core.settlement import MOVED, KeepPending, Release, Settlement
from conquiet.errors import InfrastructureError, MessageInProgressError
from conquiet.processor.cancellation import CANCELLED, FINISHED, CancelWatch
from conquiet.processor.envelope import Envelope
from conquiet.processor.handler_runner import HandlerRunner
from conquiet.processor.jobs import JobState
from conquiet.processor.parts import ProcessorParts
from conquiet.processor.results import ResultWriter
from conquiet.runtime.context import LeaseManager, MessageContext
from conquiet.runtime.message import RuntimeMessage

logger = FactLogger(__name__)


class JobCanceller:
    """Decides whether a job succeeded or was cancelled, and records the outcome.

    Args:
        parts: The parts that a processor shares.
        runners: Handlers by event.
        cancels: Settles the message on the server.
        results: Writes results of jobs that keep them.
    """

    def __init__(
        self,
        parts: ProcessorParts,
        runners: Mapping[str, HandlerRunner],
        *,
        cancels: CancelWatch,
        results: ResultWriter,
    ) -> None:
        self._keys, self._jobs = parts.keys, parts.jobs
        self._runners = runners
        self._cancels = cancels
        self._results = results

    async def cancel(self, message: RuntimeMessage, leases: LeaseManager) -> Settlement:
        """Cancel the job. Committed effects are not undone.

        With a database, the database decides first: until then a worker that was presumed dead may commit the effect.
        """
        envelope: Envelope = message.decoded
        keys = self._keys[message.stream]
        runner = self._runners.get(envelope.event)
        outcome = CANCELLED
        if runner is not None:
            try:
                if not await runner.mark_cancelled(envelope, MessageContext(message, leases)):
                    outcome = FINISHED
            except InfrastructureError as error:
                return Release(error)
            except MessageInProgressError as error:
                return KeepPending(error)
        if await self._cancels.settle(keys, message, outcome=outcome):
            await self._record(message, envelope, runner, outcome)
        return MOVED

    async def _record(
        self, message: RuntimeMessage, envelope: Envelope, runner: HandlerRunner | None, outcome: str
    ) -> None:
        keys = self._keys[message.stream]
        if self._jobs is not None:
            state = JobState.CANCELLED if outcome == CANCELLED else JobState.SUCCEEDED
            await self._jobs.record(keys, envelope, state)
        if outcome == CANCELLED:
            await self._results.ended(keys, envelope, CANCELLED)
        if runner is not None:
            runner.count(message.stream, outcome)
        logger.info(
            "job %(job_id)s of event %(event_name)s %(outcome)s: it was to be cancelled, attempt %(attempt)s",
            job_id=envelope.id,
            event_name=envelope.event,
            outcome=outcome,
            attempt=envelope.attempt,
            stream=message.stream,
            message_id=message.id,
        )
