"""``conquiet db``: the tables of the inbox and the outbox."""

from typing import Annotated

import typer

from conquiet.cli.connecting import database
from conquiet.cli.failures import reported
from conquiet.cli.numbers import finite
from conquiet.cli.settings import DbUrl

app = typer.Typer(help="Create the tables of the inbox and the outbox, and keep them small.", no_args_is_help=True)

_INBOX = "conquiet_inbox"
_OUTBOX = "conquiet_outbox"


@app.command()
@reported
def init(
    inbox: Annotated[str, typer.Option(help="Name of the inbox table.")] = _INBOX,
    outbox: Annotated[str, typer.Option(help="Name of the outbox table.")] = _OUTBOX,
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements for MySQL instead of running them.")] = False,
    db_url: DbUrl = "",
) -> None:
    """Create the tables unless they are there.

    Exit codes: 0 they are there, 1 the database refused, 2 no database.

    Examples:
        conquiet db init --db-url mysql+pymysql://root@localhost/shop

        conquiet db init --sql
    """
    from conquiet.bridge import create_tables
    from conquiet.bridge.schema import statements

    if sql:
        for statement in statements(mysql=True, inbox=inbox, outbox=outbox):
            typer.echo(f"{statement};\n")
        return
    with database(db_url) as engine:
        create_tables(engine, inbox=inbox, outbox=outbox)
    typer.echo(f"{inbox} and {outbox} are there")


@app.command()
@reported
def purge(
    older_than: Annotated[
        float, typer.Option(min=1, callback=finite, help="Seconds; a message must not come back later than that.")
    ],
    inbox: Annotated[str, typer.Option(help="Name of the inbox table.")] = _INBOX,
    batch: Annotated[int, typer.Option(min=1, max=100_000, help="Rows per transaction.")] = 1_000,
    db_url: DbUrl = "",
) -> None:
    """Delete old rows of the inbox, in many short transactions. Safe while workers run.

    A message that comes back after its row was deleted has its effect a second time: see
    docs/exactly-once.md for how long to keep them.

    Exit codes: 0 done, 1 the database refused, 2 no database.

    Examples:
        conquiet db purge --older-than 2592000
    """
    from conquiet.bridge import Inbox

    with database(db_url) as engine:
        deleted = Inbox(inbox).purge(engine, older_than_s=older_than, batch=batch)
    typer.echo(f"{deleted} rows deleted")
