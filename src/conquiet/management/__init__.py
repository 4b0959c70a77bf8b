"""What an operator asks or does, as plain functions: the command line and the dashboard only parse and print.

    Server           one Redis; every function takes it first
    overview         list_streams, describe_stream
    pending          list_pending, reclaim
    upkeep           retire, trim
    enqueueing       enqueue_all
    doctor/          examine what is configured: findings with severity, why it matters, and the fix

Synchronous, bounded (SCAN and XINFO with limits, never KEYS), each command sent once.

The names below need the extra ``redis``. They are imported when they are first used: the doctor of a database, and
the dead letters of RabbitMQ, live here too and do without.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from conquiet.kernel.extras import require_extra

if TYPE_CHECKING:
    from conquiet.management.enqueueing import enqueue_all
    from conquiet.management.models import (
        ConsumerFacts,
        GroupFacts,
        PendingFacts,
        Reclaimed,
        Retired,
        StreamFacts,
        StreamList,
        Trimmed,
    )
    from conquiet.management.overview import describe_stream, list_streams
    from conquiet.management.pending import PendingFilter, list_pending, reclaim
    from conquiet.management.server import Server
    from conquiet.management.upkeep import retire, trim

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

_HOME = {
    "ConsumerFacts": "models",
    "GroupFacts": "models",
    "PendingFacts": "models",
    "PendingFilter": "pending",
    "Reclaimed": "models",
    "Retired": "models",
    "Server": "server",
    "StreamFacts": "models",
    "StreamList": "models",
    "Trimmed": "models",
    "describe_stream": "overview",
    "enqueue_all": "enqueueing",
    "list_pending": "pending",
    "list_streams": "overview",
    "reclaim": "pending",
    "retire": "upkeep",
    "trim": "upkeep",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_extra("redis", "redis", "hiredis", "msgspec")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
