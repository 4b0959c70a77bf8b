"""Apply a message's effect exactly once. The only package that imports a broker and the database.

    Inbox          a row in the handler's transaction: a second run of the message is skipped. Identifies a message by
                   its id and, where Redis made the id, by a digest of its payload
    LeaseCheck     checks before COMMIT that the worker still owns the message. Optional, in addition to the inbox
    Outbox         a message written in the transaction that causes it
    Purger         deletes old rows of both, by one host at a time
    OutboxRelay    publishes such messages to Redis Streams, to the processor, to RabbitMQ, at least once

The promise, its limits and the choice of keys: docs/exactly-once.md.
"""

from typing import TYPE_CHECKING

from conquiet.core.constructor_help import describe_constructors
from conquiet.core.deduplicator import Deduplicator
from conquiet.core.extras import require_extra
from conquiet.core.lazy_exports import lazy_exports

require_extra("mysql", "sqlalchemy")

from conquiet.transactional.batch_handlers import (  # noqa: E402 - the extra is checked first
    for_processor_batch,
    for_processor_shared_transaction,
    for_rabbit_batch,
    for_runtime_batch,
)
from conquiet.transactional.handlers import effect_once, effect_once_async, for_processor, for_rabbit, for_runtime  # noqa: E402
from conquiet.transactional.inbox import Inbox  # noqa: E402
from conquiet.transactional.inbox_keys import InboxKey, by_outbox_id, outbox_id_of  # noqa: E402
from conquiet.transactional.lease_check import LeaseCheck  # noqa: E402
from conquiet.transactional.metadata import metadata  # noqa: E402
from conquiet.transactional.migrations import TableLayout, create_tables, migrate_tables, table_layouts  # noqa: E402
from conquiet.transactional.outbox import Outbox, OutboxBacklog, ParkedMessage  # noqa: E402
from conquiet.transactional.purging import DatabaseRetention, Purger  # noqa: E402
from conquiet.transactional.relay import OutboxRelay, RelayStats  # noqa: E402
from conquiet.transactional.relay_decisions import OutboxMessage, PublishOutcome  # noqa: E402
from conquiet.transactional.schema import SCHEMA_VERSION  # noqa: E402
from conquiet.transactional.targets import Target, ToPartitions, ToProcessor, ToStream  # noqa: E402

if TYPE_CHECKING:
    from conquiet.transactional.rabbit_target import ToRabbit

__all__ = [
    "SCHEMA_VERSION",
    "DatabaseRetention",
    "Deduplicator",
    "Inbox",
    "InboxKey",
    "LeaseCheck",
    "Outbox",
    "OutboxBacklog",
    "OutboxMessage",
    "OutboxRelay",
    "ParkedMessage",
    "PublishOutcome",
    "Purger",
    "RelayStats",
    "TableLayout",
    "Target",
    "ToPartitions",
    "ToProcessor",
    "ToRabbit",
    "ToStream",
    "by_outbox_id",
    "create_tables",
    "effect_once",
    "effect_once_async",
    "for_processor",
    "for_processor_batch",
    "for_processor_shared_transaction",
    "for_rabbit",
    "for_rabbit_batch",
    "for_runtime",
    "for_runtime_batch",
    "metadata",
    "migrate_tables",
    "outbox_id_of",
    "table_layouts",
]

describe_constructors(globals())
# Needs the extra "rabbit"; no other name does.
__getattr__, __dir__ = lazy_exports(__name__, {"ToRabbit": "conquiet.transactional.rabbit_target"})
