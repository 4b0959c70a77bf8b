"""Redis Streams with consumer groups: explicit reads, explicit acknowledgements, nothing hidden.

    RedisStreamsQueue   one command per call: enqueue, read, ack, claim, recover, extend, inspect
    QueueConsumer       a loop over it that can be stopped, and ``run()`` that commits before it acks

No database is known here. ``QueueConsumer.run`` imports its session when it is called.
"""

from conquiet.kernel.extras import require_extra

require_extra("redis", "redis", "hiredis", "msgspec")

from conquiet.queue.consumer import QueueConsumer  # noqa: E402 - the extra is checked first
from conquiet.queue.models import Backlog, MessageBatch, QueueMessage  # noqa: E402
from conquiet.queue.redis_streams import RedisStreamsQueue  # noqa: E402

__all__ = ["Backlog", "MessageBatch", "QueueConsumer", "QueueMessage", "RedisStreamsQueue"]
