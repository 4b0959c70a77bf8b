"""Inspect and change streams, jobs and servers with plain functions. The command line only parses options and prints.

    redis_admin      RedisAdmin: one Redis; every function takes it first
    overview         list_streams, describe_stream
    pending          list_pending, reclaim
    maintenance      remove_consumer, trim
    enqueue          enqueue_all
    jobs/            JobAdmin, PartitionedJobs: list, show and change the jobs of a stream (asynchronous)
    doctor/          check servers: findings with severity, reason and fix

Synchronous (except ``jobs``), bounded (SCAN and XINFO with limits, never KEYS), each command sent once.

The names below are imported on first use and need the extra ``redis``. The doctors of a database and of RabbitMQ do
not need it.
"""

from typing import TYPE_CHECKING

from conquiet.core.extras import require_extra
from conquiet.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from conquiet.management.enqueue import enqueue_all
    from conquiet.management.jobs.admin import JobAdmin, PartitionedJobs
    from conquiet.management.jobs.bulk import BulkAction, BulkReport
    from conquiet.management.jobs.control import ChangeReport, JobChange
    from conquiet.management.jobs.models import (
        Cancellation,
        JobFilter,
        JobHistory,
        JobList,
        JobPhase,
        JobProgress,
        JobReport,
    )
    from conquiet.management.jobs.reset import ResetReport
    from conquiet.management.maintenance import remove_consumer, trim
    from conquiet.management.models import (
        ConsumerReport,
        GroupReport,
        PendingReport,
        ReclaimReport,
        RemovalReport,
        StreamList,
        StreamReport,
        TrimReport,
    )
    from conquiet.management.overview import describe_stream, list_streams
    from conquiet.management.pending import PendingFilter, list_pending, reclaim
    from conquiet.management.redis_admin import RedisAdmin

__all__ = [
    "BulkAction",
    "BulkReport",
    "Cancellation",
    "ChangeReport",
    "ConsumerReport",
    "GroupReport",
    "JobAdmin",
    "JobChange",
    "JobFilter",
    "JobHistory",
    "JobList",
    "JobPhase",
    "JobProgress",
    "JobReport",
    "PartitionedJobs",
    "PendingFilter",
    "PendingReport",
    "ReclaimReport",
    "RedisAdmin",
    "RemovalReport",
    "ResetReport",
    "StreamList",
    "StreamReport",
    "TrimReport",
    "describe_stream",
    "enqueue_all",
    "list_pending",
    "list_streams",
    "reclaim",
    "remove_consumer",
    "trim",
]

_HOMES = {
    ".enqueue": ("enqueue_all",),
    ".jobs.admin": ("JobAdmin", "PartitionedJobs"),
    ".jobs.bulk": ("BulkAction", "BulkReport"),
    ".jobs.control": ("ChangeReport", "JobChange"),
    ".jobs.reset": ("ResetReport",),
    ".jobs.models": ("Cancellation", "JobFilter", "JobList", "JobPhase", "JobProgress", "JobReport", "JobHistory"),
    ".maintenance": ("remove_consumer", "trim"),
    ".models": (
        "ConsumerReport",
        "GroupReport",
        "PendingReport",
        "ReclaimReport",
        "RemovalReport",
        "StreamReport",
        "StreamList",
        "TrimReport",
    ),
    ".overview": ("describe_stream", "list_streams"),
    ".pending": ("PendingFilter", "list_pending", "reclaim"),
    ".redis_admin": ("RedisAdmin",),
}


__getattr__, __dir__ = lazy_exports(__name__, _HOMES, require=lambda: require_extra("redis", "redis", "hiredis"))
