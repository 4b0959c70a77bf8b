"""Time above the engine: cron, intervals and one-off times, each tick fired once over all hosts.

    Scheduler        the loop: declares what the program wants, fires what is due
    Schedules        the entries without a loop: add, list, remove, pause, resume, look ahead
    ScheduleEntry    what to fire: event, data, stream, and Cron, Every or Once

What is fired is an ordinary message of the processor's format; handling it is the processor's business.
"""

from conquiet.kernel.extras import require_extra

require_extra("scheduler", "redis", "hiredis", "msgspec", "cronsim")

from conquiet.scheduler.cron import Cron  # noqa: E402 - the extra is checked first
from conquiet.scheduler.entries import Every, Once, Origin, ScheduleEntry, due_of  # noqa: E402
from conquiet.scheduler.scheduler import Scheduler  # noqa: E402
from conquiet.scheduler.schedules import Listed, Run, Schedules  # noqa: E402

__all__ = ["Cron", "Every", "Listed", "Once", "Origin", "Run", "ScheduleEntry", "Scheduler", "Schedules", "due_of"]
