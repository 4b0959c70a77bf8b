"""Policy above the engine: retries, delays, dead letters, pauses, job states. An executor of ``runtime``.

    Processor           lifecycle and public interface      processor.py, processor_base.py, operator_calls.py
    ProcessorParts      shared by the parts below           parts.py, assembly.py
    Execution           runs one message                    execution.py, handler_runner.py, middleware.py, context.py
    BatchExecution      runs a batch                        batch_execution.py, batch_handler_runner.py
    Admission           may a message run now?              admission.py, unknown_events.py, cancellation.py
    AttemptRecorder     states, results, failures           attempt_recorder.py, jobs.py, results.py
    decide              settlement after a failure          policy.py (pure)
    Envelope            format of a message                 envelope.py (pure), keys.py (pure)
    Emitter             emits messages                      emitter.py, sync_emitter.py, emit_requests.py (shared rules)
    ProcessorSettler    retries and dead letters, batched   settler.py, dead_letter_record.py (pure)
    DelayedPromoter     moves due messages to their stream  delayed.py
    OrderOwnerCheck     order by key                        ordering.py, lua/ordering.lua
    PartitionedProcessor, PartitionedStream                 one stream over many slots: partition*.py
    Pauses, DeadLetters, Jobs, KeyOrder                     operator interface
    scripts             atomic steps                        scripts.py, lua/

This package imports no database.
"""

from conquiet.core.constructor_help import describe_constructors
from conquiet.core.extras import require_extra

require_extra("redis", "redis", "hiredis")

from conquiet.core.replay_report import ReplayReport  # noqa: E402 - the extra is checked first
from conquiet.processor.context import JobContext, SyncJobContext  # noqa: E402
from conquiet.processor.dead_letter_record import DeadRecord  # noqa: E402
from conquiet.processor.dead_letters import (  # noqa: E402
    DeadCause,
    DeadFilter,
    DeadLetters,
    DeadMessage,
    DeadPage,
)
from conquiet.processor.emit_requests import Emitted, NewMessage  # noqa: E402
from conquiet.processor.emitter import Emitter  # noqa: E402
from conquiet.processor.envelope import Envelope  # noqa: E402
from conquiet.processor.failed_attempts import FailedAttempt  # noqa: E402
from conquiet.processor.jobs import Job, JobPage, Jobs, JobState  # noqa: E402
from conquiet.processor.key_order import KeyOrder, KeyQueue, OrderReport  # noqa: E402
from conquiet.processor.partitioned import PartitionedProcessor  # noqa: E402
from conquiet.processor.partitioned_dead_letters import PartitionedDeadLetters  # noqa: E402
from conquiet.processor.partitioned_emitter import PartitionedEmitter, SyncPartitionedEmitter  # noqa: E402
from conquiet.processor.partitioned_results import PartitionedJobHandle, SyncPartitionedJobHandle  # noqa: E402
from conquiet.processor.partitioned_stream import PartitionedBacklog, PartitionedStream  # noqa: E402
from conquiet.processor.partitions import Layout  # noqa: E402
from conquiet.processor.pauses import Pauses  # noqa: E402
from conquiet.processor.policy import HandlerCancelledError, RateLimit, Reason, Reject, Retry, RetryPolicy  # noqa: E402
from conquiet.processor.processor import Processor  # noqa: E402
from conquiet.processor.results import JobHandle, Progress, SyncJobHandle  # noqa: E402
from conquiet.processor.settings import ProcessorSettings  # noqa: E402
from conquiet.processor.sync_emitter import SyncEmitter  # noqa: E402

__all__ = [
    "DeadCause",
    "DeadFilter",
    "DeadLetters",
    "DeadMessage",
    "DeadPage",
    "DeadRecord",
    "Emitted",
    "Emitter",
    "Envelope",
    "FailedAttempt",
    "HandlerCancelledError",
    "Job",
    "JobContext",
    "JobHandle",
    "JobPage",
    "JobState",
    "Jobs",
    "KeyOrder",
    "KeyQueue",
    "Layout",
    "NewMessage",
    "OrderReport",
    "PartitionedBacklog",
    "PartitionedDeadLetters",
    "PartitionedEmitter",
    "PartitionedJobHandle",
    "PartitionedProcessor",
    "PartitionedStream",
    "Pauses",
    "Processor",
    "ProcessorSettings",
    "Progress",
    "RateLimit",
    "Reason",
    "Reject",
    "ReplayReport",
    "Retry",
    "RetryPolicy",
    "SyncEmitter",
    "SyncJobContext",
    "SyncJobHandle",
    "SyncPartitionedEmitter",
    "SyncPartitionedJobHandle",
]

describe_constructors(globals())
