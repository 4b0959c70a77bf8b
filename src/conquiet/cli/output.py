"""Print results: tables on a terminal, tab-separated text in a pipe, or JSON; and the progress of long commands."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from conquiet.core.redaction import printable

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 200
_UNCUT = 2**30


def make_console(*, quiet: bool = False) -> "Console":
    """Return a console for stdout. Without a terminal: no colour, and a fixed width."""
    from rich.console import Console

    # rich reads NO_COLOR, TERM=dumb and the terminal's width.
    if sys.stdout.isatty():
        return Console(quiet=quiet)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() else _PIPE_WIDTH
    return Console(quiet=quiet, width=width, force_terminal=False, no_color=True, color_system=None)


def print_json(value: Any) -> None:
    """Print one JSON document. Control characters and characters that stdout cannot encode are escaped."""
    text = json.dumps(value, indent=2, default=str, ensure_ascii=not _is_utf8())
    typer.echo("".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text))


def print_result(result: Any, sentence: str, *, as_json: bool) -> None:
    """Print the result of a command as JSON or as a sentence."""
    if as_json:
        print_json(result)
    else:
        typer.echo(sentence)


def print_rows(
    title: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, empty: str, as_json: bool = False
) -> None:
    """Print rows as JSON, or as a table: framed on a terminal, tab-separated in a pipe for cut and awk."""
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo(empty)
        return
    if not sys.stdout.isatty():
        typer.echo("\t".join(columns))
        for row in rows:
            typer.echo("\t".join(_cell(row.get(column)) for column in columns))
        return
    from rich.table import Table
    from rich.text import Text

    # Text, because a name may contain brackets, which are markup.
    table = Table(title=Text(_cell(title), "table.title"), title_justify="left", header_style="bold")
    for column in columns:
        numeric = any(isinstance(row.get(column), int | float) for row in rows)
        # A name is folded and never truncated: the next command needs the whole name.
        table.add_column(
            column.replace("_", " "), justify="right" if numeric else "left", overflow="ellipsis" if numeric else "fold"
        )
    for row in rows:
        table.add_row(*(Text(_cell(row.get(column))) for column in columns))
    make_console().print(table)


def print_fact(name: str, value: object, *, width: int = 13) -> None:
    """Print a name and a value. It is escaped: the sender of a message must not be able to forge lines of output."""
    typer.echo(f"{name:<{width}} {'-' if value in (None, '') else printable(value, limit=_UNCUT)}")


def print_traceback(text: str) -> None:
    """Print the escaped lines of a traceback after an empty line; nothing if there is none."""
    if text:
        typer.echo()
        for line in text.rstrip().split("\n"):
            typer.echo(printable(line, limit=_UNCUT))


@contextmanager
def progress(what: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that the caller calls with the number of items completed so far.

    Shows a bar on a terminal, nothing in a pipe. It uses stderr, because stdout is for the result.
    """
    if not sys.stderr.isatty():
        yield lambda _completed: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda completed: bar.update(task, completed=completed)


def moment(at_ms: int) -> str:
    """Return a time in milliseconds since the epoch as text, to the second."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("_", "-") in {"utf-8", "utf8"}


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    return printable(value, limit=200)
