"""The async engine over Redis Streams: fetch, execute, settle, report what happened. SPEC(002).

    Consumer            the engine with a user's handler        consumer.py, executor.py
    Engine              the engine's life                       engine.py, assembly.py, shutdown.py
    Fetcher             when to fetch                           fetcher.py, fetch_budget.py, stream_scheduler.py
    StreamReader        how to fetch                            stream_reader.py, pending_reader.py, claiming.py
    WorkerPool          how many at once                        core/worker_pool.py
    Runner, Settler     one message, and what becomes of it     runner.py, settler.py, message.py, context.py
    Acknowledger        many acknowledgements in one write      acknowledger.py
    Heartbeat           keeps the leases of running messages    lease.py, leases.py
    OutagePause         pauses while a server is unavailable    outage.py
    EventDispatcher     calls the callbacks                     events.py

No database is known here, and no policy: retries, delays and dead letters are the processor's.
"""

from conquiet.core.constructor_help import describe_constructors
from conquiet.core.extras import require_extra

require_extra("redis", "redis", "hiredis")

from conquiet.core.worker_pool import WorkerPool  # noqa: E402 - the extra is checked first
from conquiet.runtime.consumer import Consumer  # noqa: E402
from conquiet.runtime.context import MessageContext, SyncMessageContext  # noqa: E402
from conquiet.runtime.engine_events import EngineError, Failed, Started, Succeeded  # noqa: E402
from conquiet.runtime.health import Health, StopReport  # noqa: E402
from conquiet.runtime.message import RuntimeMessage  # noqa: E402
from conquiet.runtime.settings import RuntimeSettings  # noqa: E402
from conquiet.runtime.stream_reader import StreamReader  # noqa: E402

__all__ = [
    "Consumer",
    "EngineError",
    "Failed",
    "Health",
    "MessageContext",
    "RuntimeMessage",
    "RuntimeSettings",
    "Started",
    "StopReport",
    "StreamReader",
    "Succeeded",
    "SyncMessageContext",
    "WorkerPool",
]

describe_constructors(globals())
