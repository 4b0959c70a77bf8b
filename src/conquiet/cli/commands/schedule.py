"""``conquiet schedule``: list, pause, resume and remove entries."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.command_group import CommandGroup
from conquiet.cli.connections import call_redis
from conquiet.cli.errors import CommandError
from conquiet.cli.output import print_rows
from conquiet.cli.settings import AsJson, RedisUrl

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

app = CommandGroup(help="List, pause, resume and remove schedule entries.", no_args_is_help=True)

Group = Annotated[str, typer.Option(help="Group of the schedulers.")]
Name = Annotated[str, typer.Argument(help="Name of the entry.")]


def _with(flag: str, group: str, work: "Callable[[Any], Awaitable[Any]]") -> Any:
    from conquiet.management.schedule_admin import with_schedules

    return call_redis(flag, lambda client: with_schedules(client, group, work))


@app.command("list")
def list_(group: Group = "processor", redis_url: RedisUrl = "", as_json: AsJson = False) -> None:
    """List all entries of a group with their status.

    Exit codes: 0 listed, 2 no server.

    Examples:
        conquiet schedule list --group shop
    """
    found = _with(redis_url, group, lambda schedules: schedules.list_entries())
    rows = [
        {
            "name": one.entry.name,
            "event": one.entry.event,
            "stream": one.entry.stream,
            "when": str(one.entry.when),
            "origin": one.origin.value,
            "next_run": _time(one.next_run),
            "last_fire": _time(one.last_fire),
            "fired": one.fired,
            "missed": one.missed,
            "paused_since": _time(one.paused_since),
        }
        for one in found
    ]
    columns = ["name", "event", "stream", "when", "next_run", "last_fire", "fired", "missed", "paused_since"]
    print_rows(f"Schedule of {group}", columns, rows, empty=f"group {group} has no entries", as_json=as_json)


@app.command("next")
def next_(
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1_000, help="Number of runs.")] = 10,
    name: Annotated[str, typer.Option(help="Only runs of this entry.")] = "",
    group: Group = "processor",
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Show the next runs in the order in which they fire.

    Exit codes: 0 shown, 2 no server.

    Examples:
        conquiet schedule next -n 5
    """
    found = _with(redis_url, group, lambda schedules: schedules.next_runs(count, name=name or None))
    rows = [{"at": _time(one.at), "name": one.name, "due": _time(one.due)} for one in found]
    print_rows("Next runs", ["at", "name", "due"], rows, empty="no runs are due", as_json=as_json)


@app.command()
def pause(name: Name, group: Group = "processor", redis_url: RedisUrl = "") -> None:
    """Pause an entry on all hosts. The pause survives restarts.

    Exit codes: 0 paused (or it was paused already), 2 no server or no such entry.
    """
    changed = _with(redis_url, group, lambda schedules: schedules.pause(name))
    typer.echo(f"{name} {'paused' if changed else 'was paused already'}")


@app.command()
def resume(name: Name, group: Group = "processor", redis_url: RedisUrl = "") -> None:
    """Resume a paused entry. Ticks that were due during the pause are skipped.

    Exit codes: 0 resumed (or it was not paused), 2 no server or no such entry.
    """
    changed = _with(redis_url, group, lambda schedules: schedules.resume(name))
    typer.echo(f"{name} {'continues' if changed else 'was not paused'}")


@app.command()
def remove(name: Name, group: Group = "processor", redis_url: RedisUrl = "") -> None:
    """Remove an entry and its history. An entry that code declares is created again by the code: pause it instead.

    Exit codes: 0 removed, 2 no server or no such entry.
    """
    if not _with(redis_url, group, lambda schedules: schedules.remove(name)):
        raise CommandError(f"group {group} has no entry {name!r}", fix="conquiet schedule list shows what there is")
    typer.echo(f"{name} removed")


def _time(moment: Any) -> str | None:
    return None if moment is None else str(moment.isoformat(timespec="seconds"))
