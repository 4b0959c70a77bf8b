"""Record the start and the end of attempts, and decide the settlement after a failed one.

Shared by ``execution`` and ``batch_execution``.
"""

import time
from collections.abc import Awaitable, Sequence

from conquiet.core import causation
from conquiet.core.settlement import DeadLetter, KeepPending, Release, Settlement
from conquiet.errors import InfrastructureError, JobCancelledError, MessageInProgressError
from conquiet.processor.cancellation import JobCanceller
from conquiet.processor.envelope import Envelope
from conquiet.processor.handler_runner import HandlerRunner
from conquiet.processor.jobs import JobState, StoredHistory
from conquiet.processor.parts import ProcessorParts
from conquiet.processor.policy import decide
from conquiet.processor.results import DEAD, ResultWriter
from conquiet.runtime.context import LeaseManager
from conquiet.runtime.message import RuntimeMessage


class AttemptRecorder:
    """Records attempts: the state and the result of the job, and that its handler runs.

    Args:
        parts: The parts that a processor shares.
        results: Writes results of jobs that keep them.
        canceller: Tracks running handlers, to cancel them on request, and cancels jobs.

    Attributes:
        jobs: Records job states. None if they are not kept.
        running: Messages with a running handler; see ``JobCanceller``.
    """

    def __init__(self, parts: ProcessorParts, *, results: ResultWriter, canceller: JobCanceller) -> None:
        self._keys, self.jobs = parts.keys, parts.jobs
        self._results = results
        self._canceller = canceller
        self.running = canceller.running

    def begin(self, messages: Sequence[RuntimeMessage]) -> None:
        """Record that messages of a batch run. A cancellation requested during a batch takes effect after it."""
        self.running.update(dict.fromkeys(messages))

    def abandon(self, messages: Sequence[RuntimeMessage]) -> None:
        """Record that messages of a batch no longer run, because the worker ends."""
        for message in messages:
            self.running.pop(message, None)

    async def started(self, message: RuntimeMessage, envelope: Envelope) -> None:
        """Record that an attempt starts, if states are kept."""
        if self.jobs is not None:
            await self.jobs.record(self._keys[message.stream], envelope, JobState.RUNNING)

    def must_record(self, message: RuntimeMessage, envelope: Envelope) -> bool:
        """Return True if a success must be passed to ``succeeded``, which writes something."""
        return self.jobs is not None or envelope.keep_result_ms is not None or message.cancel_requested

    async def succeeded(
        self, message: RuntimeMessage, envelope: Envelope, result: object, caused: causation.Caused
    ) -> None:
        """Write the success of a message: the end of a requested cancellation, the result, the state.

        Args:
            message: The message.
            envelope: Its envelope.
            result: Return value of the handler. None for a message of a batch.
            caused: Messages that the handler emitted.
        """
        keys = self._keys[message.stream]
        if message.cancel_requested:
            await self._canceller.finish(keys, message)
        if envelope.keep_result_ms is not None:
            await self._results.succeeded(keys, envelope, result)
        if self.jobs is not None:
            history = StoredHistory(envelope, duration_s=time.monotonic() - message.started_at, caused=caused)
            await self.jobs.record_soon(keys, envelope, JobState.SUCCEEDED, history)

    async def failed(
        self,
        message: RuntimeMessage,
        leases: LeaseManager,
        envelope: Envelope,
        runner: HandlerRunner,
        failure: Exception,
    ) -> Settlement:
        """Return the settlement of a message after a failed attempt."""
        if (message.cancel_requested or isinstance(failure, JobCancelledError)) and not message.acknowledged:
            return await self._canceller.cancel(message, leases)
        state: JobState | None = None
        settlement: Settlement
        if message.acknowledged:
            # The handler acknowledged its message before it failed. There is nothing left to retry.
            runner.count(message.stream, "failed_after_ack")
            state, settlement = JobState.DEAD, KeepPending(failure)
        elif isinstance(failure, InfrastructureError):
            # Server unavailable: no attempt is charged. The engine releases the entry and pauses.
            state, settlement = JobState.WAITING, Release(failure)
        elif isinstance(failure, MessageInProgressError):
            # Another run of the message has not ended. If this one were charged, the message could be dead-lettered
            # while the other run commits.
            state, settlement = JobState.WAITING, KeepPending(failure)
        else:
            allowed = runner.attempts_of(envelope)
            settlement = decide(failure, attempt=envelope.attempt, policy=runner.retry, max_attempts=allowed)
        if self.jobs is not None and state is not None:
            await self.jobs.record(self._keys[message.stream], envelope, state, failure)
        return settlement

    def dead(self, message: RuntimeMessage, envelope: Envelope, settlement: DeadLetter) -> Awaitable[None]:
        """Write that a message is dead, if its result is kept."""
        reason = type(settlement.failure).__name__ if settlement.failure is not None else settlement.reason
        return self._results.ended(self._keys[message.stream], envelope, DEAD, reason)
