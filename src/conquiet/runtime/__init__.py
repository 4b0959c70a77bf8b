"""The async engine over Redis Streams: fetch, execute, settle, report. SPEC(002).

    Consumer            the engine with a user's handler        consumer.py, executor.py
    Engine              lifecycle: start, stop, health          engine.py, parts.py, assembly.py, shutdown.py
    Fetcher             when to fetch                           fetcher.py, fetch_budget.py, stream_scheduler.py
    StreamReader        how to fetch                            stream_reader.py, pending_reader.py, claiming.py
    WorkerPool          how many handlers run concurrently      core/worker_pool.py
    Runner, Settler     runs and settles one message            runner.py, settler.py, message.py, context.py
    Acknowledger        many acknowledgements in one write      acknowledger.py
    Heartbeat           extends the leases of running messages  heartbeat.py, lease_table.py, leases.py
    OutagePause         pauses while a server is unavailable    outage.py
    OutcomeReporter     counts, logs and reports outcomes       outcomes.py, metrics.py
    EventDispatcher     calls the callbacks                     engine_events.py

This package imports no database and holds no policy: retries, delays and dead letters belong to ``processor``.
"""

from conquiet.core.constructor_help import describe_constructors
from conquiet.core.extras import require_extra

require_extra("redis", "redis", "hiredis")

from conquiet.core.worker_pool import WorkerPool  # noqa: E402 - the extra is checked first
from conquiet.runtime.consumer import Consumer  # noqa: E402
from conquiet.runtime.context import MessageContext, SyncMessageContext  # noqa: E402
from conquiet.runtime.engine_events import EngineError, Failed, Started, Succeeded  # noqa: E402
from conquiet.runtime.health import EngineHealth, StopReport  # noqa: E402
from conquiet.runtime.message import HandlerState, Ownership, RuntimeMessage  # noqa: E402
from conquiet.runtime.metrics import StreamCounts  # noqa: E402
from conquiet.runtime.settings import RuntimeSettings  # noqa: E402
from conquiet.runtime.stream_reader import StreamReader  # noqa: E402

__all__ = [
    "Consumer",
    "EngineError",
    "EngineHealth",
    "Failed",
    "HandlerState",
    "MessageContext",
    "Ownership",
    "RuntimeMessage",
    "RuntimeSettings",
    "Started",
    "StopReport",
    "StreamCounts",
    "StreamReader",
    "Succeeded",
    "SyncMessageContext",
    "WorkerPool",
]

describe_constructors(globals())
