"""The async engine over Redis Streams: fetch, run the handler, acknowledge, tell what happened. SPEC(002).

    Consumer            the engine's life                   consumer.py
    Intake              when to fetch                       intake.py, fairness.py, stealing.py
    StreamReader        how to fetch                        stream_reader.py, wire.py, line.py
    ConcurrencyPool     how many at once                    concurrency_pool.py
    Runner              one message's life                  runner.py, context.py
    Acknowledger        many acknowledgements in one write  acknowledger.py
    Heartbeat           what keeps running messages ours    lease.py
    EventDispatcher     who is told                         events.py

No database is known here, and no policy: retries, delays and dead letters are the processor's.
"""

from conquiet.kernel.extras import require_extra

require_extra("redis", "redis", "hiredis", "msgspec")

from conquiet.runtime.concurrency_pool import ConcurrencyPool  # noqa: E402 - the extra is checked first
from conquiet.runtime.consumer import Consumer  # noqa: E402
from conquiet.runtime.context import MessageContext, RuntimeMessage, SyncMessageContext  # noqa: E402
from conquiet.runtime.events import EngineError, Failed, Started, Succeeded  # noqa: E402
from conquiet.runtime.health import Health, StopReport  # noqa: E402
from conquiet.runtime.settings import RuntimeSettings  # noqa: E402
from conquiet.runtime.stream_reader import StreamReader  # noqa: E402

__all__ = [
    "ConcurrencyPool",
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
]
