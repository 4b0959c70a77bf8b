"""List, pause and resume schedule entries, and run one immediately."""

from typing import TYPE_CHECKING, Any

from conquiet.core.redaction import printable
from conquiet.errors import ConfigurationError

if TYPE_CHECKING:
    from conquiet.redis_transport.client import AsyncClient
    from conquiet.scheduler import ScheduleStatus, UpcomingRun


async def list_schedules(client: "AsyncClient", group: str) -> "list[ScheduleStatus]":
    """Return the entries of a group by name."""
    async with _schedules(client, group) as schedules:
        found: list[ScheduleStatus] = await schedules.list_entries()
        return found


async def next_schedule_runs(client: "AsyncClient", group: str, *, count: int = 10) -> "list[UpcomingRun]":
    """Return the next runs of a group."""
    async with _schedules(client, group) as schedules:
        found: list[UpcomingRun] = await schedules.next_runs(count)
        return found


async def pause_schedule(client: "AsyncClient", group: str, name: str) -> bool:
    """Pause an entry on all hosts; False if it was paused already."""
    async with _schedules(client, group) as schedules:
        return bool(await schedules.pause(name))


async def resume_schedule(client: "AsyncClient", group: str, name: str) -> bool:
    """Resume an entry; False if it was not paused."""
    async with _schedules(client, group) as schedules:
        return bool(await schedules.resume(name))


async def run_schedule_now(client: "AsyncClient", group: str, name: str) -> str:
    """Emit the event of an entry now and return the message's id. The schedule of the entry does not change.

    Raises:
        ConfigurationError: The group has no entry of that name.
    """
    from conquiet.processor import Emitter

    for one in await list_schedules(client, group):
        if one.entry.name == name:
            emitted = await Emitter(client, one.entry.stream).emit(one.entry.event, dict(one.entry.data))
            return emitted.id
    raise ConfigurationError(f"group {printable(group)!r} has no schedule entry {printable(name)!r}")


def _schedules(client: "AsyncClient", group: str) -> Any:
    from conquiet.scheduler import Schedules

    return Schedules(client, group=group)
