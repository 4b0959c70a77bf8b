"""List, pause and resume schedule entries, and run one immediately."""

from typing import TYPE_CHECKING, TypeVar

from conquiet.core.redaction import printable
from conquiet.errors import ConfigurationError
from conquiet.processor import Emitter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from conquiet.redis_transport.client import AsyncClient
    from conquiet.scheduler import Schedules

T = TypeVar("T")


async def with_schedules(client: "AsyncClient", group: str, work: "Callable[[Schedules], Awaitable[T]]") -> T:
    """Return ``await work(schedules)`` with the entries of a group."""
    from conquiet.scheduler import Schedules  # needs the extra "scheduler", which the dashboard does without

    async with Schedules(client, group=group) as schedules:
        return await work(schedules)


async def run_schedule_now(client: "AsyncClient", group: str, name: str) -> str:
    """Emit the event of an entry now and return the message's id. The schedule of the entry does not change.

    Raises:
        ConfigurationError: The group has no entry of that name.
    """
    for one in await with_schedules(client, group, lambda schedules: schedules.list_entries()):
        if one.entry.name == name:
            emitted = await Emitter(client, one.entry.stream).emit(one.entry.event, dict(one.entry.data))
            return emitted.id
    raise ConfigurationError(f"group {printable(group)!r} has no schedule entry {printable(name)!r}")
