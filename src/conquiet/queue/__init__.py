"""Redis Streams with consumer groups: explicit reads, explicit acknowledgements, nothing hidden.

    RedisStreamsQueue   one command per call: enqueue, read, ack, claim, recover, extend, inspect
    StreamProducer      enqueue without a consumer group
    QueueConsumer       a loop over it that can be stopped, and ``run()`` that commits before it acknowledges
    QueueWorker         a consumer with its handler and engine: run, stop, health, close
    StreamHousekeeper   removes what every group is done with, and dead consumer names; ``Retention`` sets what stays

This package imports no database. ``QueueConsumer.run`` imports its session when it is called.
"""

from conquiet.core.constructor_help import describe_constructors
from conquiet.core.extras import require_extra

require_extra("redis", "redis", "hiredis")

from conquiet.queue.consumer import QueueConsumer  # noqa: E402 - the extra is checked first
from conquiet.queue.housekeeping import StreamHousekeeper  # noqa: E402
from conquiet.queue.models import Backlog, MessageBatch, QueueMessage  # noqa: E402
from conquiet.queue.producer import StreamProducer  # noqa: E402
from conquiet.queue.redis_streams import RedisStreamsQueue  # noqa: E402
from conquiet.queue.retention import Retention  # noqa: E402
from conquiet.queue.worker import QueueWorker  # noqa: E402

__all__ = [
    "Backlog",
    "MessageBatch",
    "QueueConsumer",
    "QueueMessage",
    "QueueWorker",
    "RedisStreamsQueue",
    "Retention",
    "StreamHousekeeper",
    "StreamProducer",
]

describe_constructors(globals())
