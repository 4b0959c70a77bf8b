"""What ``conquiet`` understands: each command parses its words in a module of its own and is carried out elsewhere."""

from typing import Annotated

import typer

from conquiet._version import __version__
from conquiet.cli.commands import (
    db,
    dead_letters,
    doctor,
    enqueue,
    inspect,
    processing,
    rabbit,
    schedule,
    upkeep,
)
from conquiet.cli.demo.command import demo
from conquiet.cli.failures import set_debugging
from conquiet.cli.worker.command import worker

app = typer.Typer(
    name="conquiet",
    help="Process it, commit it, then acknowledge it.",
    epilog="Exit codes: 0 good, 1 a bad answer or failed work, 2 nothing done (wrong words, no server), 130 Ctrl-C.",
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
    version: Annotated[  # noqa: ARG001 - its callback does everything
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Process it, commit it, then acknowledge it."""
    if debug:
        set_debugging()


for _panel, _commands in {
    "Run": (demo, worker),
    "Send": (enqueue.enqueue, processing.emit, rabbit.publish),
    "Look": (inspect.inspect, upkeep.pending, doctor.doctor),
    "Mend": (upkeep.reclaim, upkeep.retire, upkeep.trim, processing.pause, processing.resume),
}.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
app.add_typer(dead_letters.app, name="dead-letters", rich_help_panel="Mend")
app.add_typer(schedule.app, name="schedule", rich_help_panel="Mend")
app.add_typer(rabbit.app, name="rabbit", rich_help_panel="Run")
app.add_typer(db.app, name="db", rich_help_panel="Mend")
