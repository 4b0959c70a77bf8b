"""What ``conquiet`` understands: each command parses its words here and is carried out elsewhere."""

from typing import Annotated

import typer

from conquiet._version import __version__

app = typer.Typer(
    name="conquiet",
    help="Process it, commit it, then acknowledge it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"conquiet {__version__}")
        raise typer.Exit


@app.callback()
def conquiet(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Process it, commit it, then acknowledge it."""
