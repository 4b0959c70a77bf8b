"""Cron, intervals and one-off times: each tick is fired once over all hosts.

    Scheduler        the worker: stores the entries of the program, fires what is due
    Schedules        the entries without a worker: add, list, remove, pause, resume, next runs
    ScheduleEntry    what to fire: event, data, stream, and Cron, Every or Once

A fired tick is an ordinary message of the processor's format, handled by a processor.
"""

from conquiet.core.constructor_help import describe_constructors
from conquiet.core.extras import require_extra

require_extra("scheduler", "redis", "hiredis", "cronsim")

from conquiet.scheduler.cron import Cron  # noqa: E402 - the extra is checked first
from conquiet.scheduler.entries import Every, Once, Origin, ScheduleEntry, due_of  # noqa: E402
from conquiet.scheduler.scheduler import Scheduler  # noqa: E402
from conquiet.scheduler.schedules import Schedules, ScheduleStatus, UpcomingRun  # noqa: E402

__all__ = [
    "Cron",
    "Every",
    "Once",
    "Origin",
    "ScheduleEntry",
    "ScheduleStatus",
    "Scheduler",
    "Schedules",
    "UpcomingRun",
    "due_of",
]

describe_constructors(globals())
