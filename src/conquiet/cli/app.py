"""The commands of ``conquiet``. Each is defined in a separate module."""

from typing import Annotated

import typer

from conquiet._version import __version__
from conquiet.cli.command_group import CommandGroup
from conquiet.cli.commands import (
    dashboard,
    db,
    dead_letters,
    doctor,
    enqueue,
    inspect,
    jobs_bulk,
    keys,
    maintenance,
    outbox,
    processing,
    rabbit,
    schedule,
)
from conquiet.cli.demo.command import demo
from conquiet.cli.dev.command import dev
from conquiet.cli.errors import set_debugging
from conquiet.cli.logs import is_json, set_up_logging
from conquiet.cli.option_types import LogFormat
from conquiet.cli.scaffold.command import new
from conquiet.cli.worker.command import worker

app = CommandGroup(
    name="conquiet",
    help="Process it, commit it, then acknowledge it.",
    epilog="Exit codes: 0 good, 1 a bad result or failed work, 2 usage error or server unreachable, 130 Ctrl-C.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"conquiet {__version__}")
        raise typer.Exit


@app.callback()
def conquiet(
    version: Annotated[  # noqa: ARG001 - handled by its callback
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    log_format: LogFormat = "",
) -> None:
    """Process it, commit it, then acknowledge it."""
    if debug:
        set_debugging()
    if log_format or is_json():
        set_up_logging("warning")


for _panel, _commands in {
    "Run": (demo, worker, dev, new),
    "Send": (enqueue.enqueue, processing.emit, rabbit.publish),
    "Inspect": (inspect.inspect, maintenance.pending, keys.keys, doctor.doctor, dashboard.dashboard),
    "Maintain": (
        maintenance.reclaim,
        maintenance.remove_consumer,
        maintenance.trim,
        processing.pause,
        processing.resume,
    ),
}.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
app.add_typer(dead_letters.app, name="dead-letters", rich_help_panel="Maintain")
app.add_typer(jobs_bulk.app, name="jobs", rich_help_panel="Maintain")
app.add_typer(schedule.app, name="schedule", rich_help_panel="Maintain")
app.add_typer(rabbit.app, name="rabbit", rich_help_panel="Run")
app.add_typer(outbox.app, name="outbox", rich_help_panel="Maintain")
app.add_typer(db.app, name="db", rich_help_panel="Maintain")
