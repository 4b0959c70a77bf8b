"""Apply a message's effect exactly once. The only package that imports a broker and the database.

    Inbox          a row in the handler's transaction: a second run of the message is skipped. Identifies a message by
                   its id and, where Redis made the id, by a digest of its payload
    LeaseCheck     checks before COMMIT that the worker still owns the message. Optional, in addition to the inbox
    Outbox         a message written in the transaction that causes it
    Purger         deletes old rows of both, by one host at a time
    OutboxRelay    publishes such messages to Redis Streams, to the processor, to RabbitMQ, at least once

The promise, its limits and the choice of keys: docs/exactly-once.md.
"""

from conquiet.core.extras import require_extra
from conquiet.core.lazy_exports import lazy_exports, stub_exports

require_extra("mysql", "sqlalchemy")

# Not on first use: the import of the module would then give its name to itself.
from conquiet.transactional.metadata import metadata  # noqa: E402, F401

_HOMES = stub_exports(__name__)
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
