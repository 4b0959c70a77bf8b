"""What an operator asks or does, as plain functions: the command line and the dashboard only parse and print.

    Server           one Redis; every function takes it first
    overview         list_streams, describe_stream
    pending          list_pending, reclaim
    upkeep           retire, trim
    enqueueing       enqueue_all
    doctor/          examine what is configured: findings with severity, why it matters, and the fix

Synchronous, bounded (SCAN and XINFO with limits, never KEYS), each command sent once.
"""

from conquiet.kernel.extras import require_extra

require_extra("redis", "redis", "msgspec")

from conquiet.management.enqueueing import enqueue_all  # noqa: E402 - the extra is checked first
from conquiet.management.models import (  # noqa: E402
    ConsumerFacts,
    GroupFacts,
    PendingFacts,
    Reclaimed,
    Retired,
    StreamFacts,
    StreamList,
    Trimmed,
)
from conquiet.management.overview import describe_stream, list_streams  # noqa: E402
from conquiet.management.pending import PendingFilter, list_pending, reclaim  # noqa: E402
from conquiet.management.server import Server  # noqa: E402
from conquiet.management.upkeep import retire, trim  # noqa: E402

__all__ = [
    "ConsumerFacts",
    "GroupFacts",
    "PendingFacts",
    "PendingFilter",
    "Reclaimed",
    "Retired",
    "Server",
    "StreamFacts",
    "StreamList",
    "Trimmed",
    "describe_stream",
    "enqueue_all",
    "list_pending",
    "list_streams",
    "reclaim",
    "retire",
    "trim",
]
