"""conquiet: process it, commit it, then acknowledge it.

The names below are imported when they are first used, so that a missing optional dependency is
an error only for who uses it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from conquiet._version import __version__

if TYPE_CHECKING:
    from conquiet.bridge import Inbox, Outbox, OutboxRelay
    from conquiet.config import DbConfig, QueueConfig
    from conquiet.db.locking.strategy import LockStrategy
    from conquiet.db.models import DbOperation, DbOperationType
    from conquiet.db.session import DbSession
    from conquiet.db.writer import DbWriter
    from conquiet.errors import ConquietError
    from conquiet.processor import JobContext, Processor, Reject, Retry, RetryPolicy, SyncEmitter
    from conquiet.queue import QueueConsumer, QueueMessage, RedisStreamsQueue
    from conquiet.rabbit import RabbitConsumer, sync_queue
    from conquiet.runtime import Consumer, MessageContext, RuntimeMessage, RuntimeSettings
    from conquiet.scheduler import Cron, Every, Once, ScheduleEntry, Scheduler
    from conquiet.signals import install_termination_handlers

__all__ = [
    "ConquietError",
    "Consumer",
    "Cron",
    "DbConfig",
    "DbOperation",
    "DbOperationType",
    "DbSession",
    "DbWriter",
    "Every",
    "Inbox",
    "JobContext",
    "LockStrategy",
    "MessageContext",
    "Once",
    "Outbox",
    "OutboxRelay",
    "Processor",
    "QueueConfig",
    "QueueConsumer",
    "QueueMessage",
    "RabbitConsumer",
    "RedisStreamsQueue",
    "Reject",
    "Retry",
    "RetryPolicy",
    "RuntimeMessage",
    "RuntimeSettings",
    "ScheduleEntry",
    "Scheduler",
    "SyncEmitter",
    "__version__",
    "install_termination_handlers",
    "sync_queue",
]

_HOME = {
    "ConquietError": "conquiet.errors",
    "Consumer": "conquiet.runtime",
    "Cron": "conquiet.scheduler",
    "DbConfig": "conquiet.config",
    "DbOperation": "conquiet.db.models",
    "DbOperationType": "conquiet.db.models",
    "DbSession": "conquiet.db.session",
    "DbWriter": "conquiet.db.writer",
    "Every": "conquiet.scheduler",
    "Inbox": "conquiet.bridge",
    "JobContext": "conquiet.processor",
    "LockStrategy": "conquiet.db.locking.strategy",
    "MessageContext": "conquiet.runtime",
    "Once": "conquiet.scheduler",
    "Outbox": "conquiet.bridge",
    "OutboxRelay": "conquiet.bridge",
    "Processor": "conquiet.processor",
    "QueueConfig": "conquiet.config",
    "QueueConsumer": "conquiet.queue",
    "QueueMessage": "conquiet.queue",
    "RabbitConsumer": "conquiet.rabbit",
    "RedisStreamsQueue": "conquiet.queue",
    "Reject": "conquiet.processor",
    "Retry": "conquiet.processor",
    "RetryPolicy": "conquiet.processor",
    "RuntimeMessage": "conquiet.runtime",
    "RuntimeSettings": "conquiet.runtime",
    "ScheduleEntry": "conquiet.scheduler",
    "Scheduler": "conquiet.scheduler",
    "SyncEmitter": "conquiet.processor",
    "install_termination_handlers": "conquiet.signals",
    "sync_queue": "conquiet.rabbit",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'conquiet' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
