"""Construct the parts that run the messages of one processor. Each part depends only on earlier parts. Nothing is sent.

EnvelopeDecoder, Admission, AttemptRecorder ◀── BatchExecution ◀── Execution
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from conquiet.core.settlement import Settlement
from conquiet.processor.admission import Admission
from conquiet.processor.attempt_recorder import AttemptRecorder
from conquiet.processor.batch_execution import BatchExecution
from conquiet.processor.batch_handler_runner import BatchHandlerRunner, Runners
from conquiet.processor.cancellation import CancelWatch
from conquiet.processor.emitter import Emitter
from conquiet.processor.envelope_decoder import EnvelopeDecoder
from conquiet.processor.execution import Execution
from conquiet.processor.foreign import ForeignGuard
from conquiet.processor.job_canceller import JobCanceller
from conquiet.processor.jobs import JobRecorder
from conquiet.processor.keys import Keys
from conquiet.processor.pauses import Pauses
from conquiet.processor.raw_entries import has_messages
from conquiet.processor.results import ResultWriter
from conquiet.processor.server_clock import ServerClock
from conquiet.processor.settings import ProcessorSettings
from conquiet.processor.settler import ProcessorSettler
from conquiet.processor.unknown_events import UnknownEvents
from conquiet.redis_transport.client import AsyncClient
from conquiet.runtime.message import RuntimeMessage


@dataclass(frozen=True, slots=True)
class ProcessorParts:
    """Parts of a processor that exist before its start.

    Attributes:
        client: A client without retries. The processor closes it.
        group: The consumer group.
        consumer_id: Name of the engine in it.
        keys: Keys by stream.
        settings: Settings of the processor.
        emitter: For ``ctx.emit``.
        jobs: Records job states. None if they are not kept.
        pauses: Tracks paused streams and events.
        log_tracebacks: Log whole tracebacks of handlers.
    """

    client: AsyncClient
    group: str
    consumer_id: str
    keys: Mapping[str, Keys]
    settings: ProcessorSettings
    emitter: Emitter
    jobs: JobRecorder | None
    pauses: Pauses
    log_tracebacks: bool


@dataclass(frozen=True, slots=True)
class AssembledProcessor:
    """The parts that the processor itself uses."""

    execution: Execution
    clock: ServerClock
    cancels: CancelWatch
    foreign: ForeignGuard


def assemble(
    parts: ProcessorParts, runners: Runners, settle_held: Callable[[RuntimeMessage, Settlement], Awaitable[None]]
) -> AssembledProcessor:
    """Return the parts that run messages.

    Args:
        parts: The parts that exist already.
        runners: Handlers by event.
        settle_held: Settles an entry that ``ForeignGuard`` has held.
    """
    client, group, keys, settings, jobs = parts.client, parts.group, parts.keys, parts.settings, parts.jobs
    clock = ServerClock()
    cancels = CancelWatch(client, group=group, consumer_id=parts.consumer_id)
    foreign = ForeignGuard(settings.foreign_limit, partial(has_messages, client), settle_held)
    results = ResultWriter(client, max_bytes=settings.max_payload_bytes)
    settler = ProcessorSettler(
        client,
        group=group,
        consumer_id=parts.consumer_id,
        keys=keys,
        settings=settings,
        clock=clock,
        jobs=jobs,
        log_tracebacks=parts.log_tracebacks,
    )
    canceller = JobCanceller(
        keys=keys, runners=runners, emitter=parts.emitter, cancels=cancels, jobs=jobs, results=results
    )
    decoder = EnvelopeDecoder(group, foreign)
    admission = Admission(
        keys=keys,
        clock=clock,
        pauses=parts.pauses,
        cancels=cancels,
        canceller=canceller,
        settler=settler,
        unknown=UnknownEvents(runners, keys=keys, settings=settings, clock=clock, jobs=jobs),
    )
    attempts = AttemptRecorder(keys=keys, jobs=jobs, results=results, cancels=cancels, canceller=canceller)
    batched = {event: runner for event, runner in runners.items() if isinstance(runner, BatchHandlerRunner)}
    batching = None
    if batched:
        batching = BatchExecution(
            batched, emitter=parts.emitter, decoder=decoder, admission=admission, attempts=attempts
        )
    execution = Execution(
        runners=runners,
        emitter=parts.emitter,
        decoder=decoder,
        admission=admission,
        attempts=attempts,
        settler=settler,
        canceller=canceller,
        batching=batching,
    )
    return AssembledProcessor(execution, clock, cancels, foreign)
