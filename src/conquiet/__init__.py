"""conquiet: process it, commit it, then acknowledge it.

The names below are imported on first use, so that a program needs only the extras of the names it uses.
docs/api.md lists every public name.
"""

from typing import TYPE_CHECKING

from conquiet._version import __version__
from conquiet.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from conquiet.app import App, AppSettings, Emit, SyncEmit, TestApp
    from conquiet.config import DbConfig, QueueConfig
    from conquiet.core.lifecycle import Health, Status
    from conquiet.db.locking.strategy import LockStrategy
    from conquiet.db.models import DbOperation, DbOperationType
    from conquiet.db.session import DbSession
    from conquiet.db.writer import DbWriter
    from conquiet.errors import ConquietError, InfrastructureError
    from conquiet.processor import (
        JobContext,
        NewMessage,
        Processor,
        ProcessorSettings,
        RateLimit,
        Reject,
        Retry,
        RetryPolicy,
        SyncEmitter,
        SyncJobContext,
    )
    from conquiet.queue import QueueConsumer, QueueMessage, QueueWorker, RedisStreamsQueue
    from conquiet.rabbit import RabbitConsumer, run_process, sync_queue
    from conquiet.runtime import Consumer, MessageContext, RuntimeMessage, RuntimeSettings, SyncMessageContext
    from conquiet.scheduler import Cron, Every, Once, ScheduleEntry, Scheduler
    from conquiet.signals import install_termination_handlers
    from conquiet.transactional import Inbox, Outbox, OutboxRelay

__all__ = [
    "App",
    "AppSettings",
    "ConquietError",
    "Consumer",
    "Cron",
    "DbConfig",
    "DbOperation",
    "DbOperationType",
    "DbSession",
    "DbWriter",
    "Emit",
    "Every",
    "Health",
    "Inbox",
    "InfrastructureError",
    "JobContext",
    "LockStrategy",
    "MessageContext",
    "NewMessage",
    "Once",
    "Outbox",
    "OutboxRelay",
    "Processor",
    "ProcessorSettings",
    "QueueConfig",
    "QueueConsumer",
    "QueueMessage",
    "QueueWorker",
    "RabbitConsumer",
    "RateLimit",
    "RedisStreamsQueue",
    "Reject",
    "Retry",
    "RetryPolicy",
    "RuntimeMessage",
    "RuntimeSettings",
    "ScheduleEntry",
    "Scheduler",
    "Status",
    "SyncEmit",
    "SyncEmitter",
    "SyncJobContext",
    "SyncMessageContext",
    "TestApp",
    "__version__",
    "install_termination_handlers",
    "run_process",
    "sync_queue",
]

_HOMES = {
    "conquiet.app": ("App", "AppSettings", "Emit", "SyncEmit", "TestApp"),
    "conquiet.config": ("DbConfig", "QueueConfig"),
    "conquiet.core.lifecycle": ("Health", "Status"),
    "conquiet.db.locking.strategy": ("LockStrategy",),
    "conquiet.db.models": ("DbOperation", "DbOperationType"),
    "conquiet.db.session": ("DbSession",),
    "conquiet.db.writer": ("DbWriter",),
    "conquiet.errors": ("ConquietError", "InfrastructureError"),
    "conquiet.processor": (
        "JobContext",
        "NewMessage",
        "Processor",
        "ProcessorSettings",
        "RateLimit",
        "Reject",
        "Retry",
        "RetryPolicy",
        "SyncEmitter",
        "SyncJobContext",
    ),
    "conquiet.queue": ("QueueConsumer", "QueueMessage", "QueueWorker", "RedisStreamsQueue"),
    "conquiet.rabbit": ("RabbitConsumer", "run_process", "sync_queue"),
    "conquiet.runtime": ("Consumer", "MessageContext", "RuntimeMessage", "RuntimeSettings", "SyncMessageContext"),
    "conquiet.scheduler": ("Cron", "Every", "Once", "ScheduleEntry", "Scheduler"),
    "conquiet.signals": ("install_termination_handlers",),
    "conquiet.transactional": ("Inbox", "Outbox", "OutboxRelay"),
}


__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
