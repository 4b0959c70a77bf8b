"""Construct the parts that run the messages of one processor. Each part depends only on earlier parts. Nothing is sent.

EnvelopeDecoder, Admission, AttemptRecorder ◀── BatchExecution ◀── Execution
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from conquiet.core.settlement import Settlement
from conquiet.processor.admission import Admission
from conquiet.processor.attempt_recorder import AttemptRecorder
from conquiet.processor.batch_execution import BatchExecution
from conquiet.processor.batch_handler_runner import BatchHandlerRunner, Runners
from conquiet.processor.cancellation import JobCanceller
from conquiet.processor.envelope_decoder import EnvelopeDecoder
from conquiet.processor.execution import Execution
from conquiet.processor.foreign import ForeignGuard, has_messages
from conquiet.processor.parts import ProcessorParts
from conquiet.processor.results import ResultWriter
from conquiet.processor.settler import ProcessorSettler
from conquiet.processor.unknown_events import UnknownEvents
from conquiet.runtime.message import RuntimeMessage


@dataclass(frozen=True, slots=True)
class AssembledProcessor:
    """The parts that the processor itself uses."""

    execution: Execution
    canceller: JobCanceller
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
    client, settings = parts.client, parts.settings
    foreign = ForeignGuard(settings.foreign_limit, partial(has_messages, client), settle_held)
    results = ResultWriter(client, max_bytes=settings.max_payload_bytes)
    settler = ProcessorSettler(parts)
    canceller = JobCanceller(parts, runners, results=results)
    decoder = EnvelopeDecoder(parts.group, foreign)
    unknown = UnknownEvents(parts, runners)
    admission = Admission(parts, canceller=canceller, settler=settler, unknown=unknown)
    attempts = AttemptRecorder(parts, canceller=canceller, results=results)
    batched = {event: runner for event, runner in runners.items() if isinstance(runner, BatchHandlerRunner)}
    batching = None
    if batched:
        batching = BatchExecution(batched, decoder=decoder, admission=admission, attempts=attempts)
    execution = Execution(
        runners=runners,
        decoder=decoder,
        admission=admission,
        attempts=attempts,
        settler=settler,
        canceller=canceller,
        batching=batching,
    )
    return AssembledProcessor(execution, canceller, foreign)
