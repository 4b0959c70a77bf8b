"""Inspect and change streams, jobs and servers with plain functions. The command line only parses options and prints.

    redis_admin      RedisAdmin: one Redis; every function takes it first
    overview         list_streams, describe_stream
    pending          list_pending, reclaim
    maintenance      remove_consumer, trim
    enqueue          enqueue_all
    jobs/            JobAdmin: list, show and change the jobs of a stream (asynchronous)
    doctor/          check servers: findings with severity, reason and fix

Synchronous (except ``jobs``), bounded (SCAN and XINFO with limits, never KEYS), each command sent once.

The names of ``__init__.pyi`` are imported on first use and need the extra ``redis``. The doctors of a database and of
RabbitMQ do not need it.
"""

from conquiet.core.extras import require_extra
from conquiet.core.lazy_exports import lazy_exports, stub_exports

_HOMES = stub_exports(__name__)
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES, require=lambda: require_extra("redis", "redis", "hiredis"))
