"""``conquiet db``: the tables of the inbox and the outbox."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.command_group import CommandGroup
from conquiet.cli.connections import open_database
from conquiet.cli.errors import CommandError
from conquiet.cli.option_types import number_option
from conquiet.cli.output import print_json, print_result, print_rows
from conquiet.cli.settings import INBOX, OUTBOX, AsJson, DbUrl, InboxTable, OutboxTable

if TYPE_CHECKING:
    from conquiet.app import App

app = CommandGroup(
    help="Create the tables of the inbox and the outbox, update them, and keep them small.", no_args_is_help=True
)


@app.command()
def init(
    target: Annotated[
        str, typer.Argument(metavar="[MODULE:APP]", help="Create the tables in the database of this App.")
    ] = "",
    inbox: InboxTable = INBOX,
    outbox: OutboxTable = OUTBOX,
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements instead of running them.")] = False,
    database: Annotated[str, typer.Option(help="With --sql: mysql, postgresql or sqlite.")] = "mysql",
    db_url: DbUrl = "",
) -> None:
    """Create the tables unless they exist, on MySQL, MariaDB, PostgreSQL or SQLite.

    Exit codes: 0 they exist, 1 the database refused, 2 usage error or no database.

    Examples:
        conquiet db init --db-url mysql+pymysql://root@localhost/shop

        conquiet db init shop:app

        conquiet db init --sql --database postgresql
    """
    from conquiet.transactional import create_tables
    from conquiet.transactional.schema import DATABASES, statements

    if target:
        found = _load_app(target)
        found.create_tables()
        typer.echo(f"the tables of {found.name} are there")
        return
    if sql:
        if database not in DATABASES:
            raise CommandError(f"there is no schema for {database}", fix=f"--database {', '.join(DATABASES)}")
        for statement in statements(database, inbox=inbox, outbox=outbox):
            typer.echo(f"{statement};\n")
        return
    with open_database(db_url) as engine:
        create_tables(engine, inbox=inbox, outbox=outbox)
    typer.echo(f"{inbox} and {outbox} are there")


@app.command()
def migrate(
    target: Annotated[
        str, typer.Argument(metavar="[MODULE:APP]", help="Change the tables in the database of this App.")
    ] = "",
    inbox: InboxTable = INBOX,
    outbox: OutboxTable = OUTBOX,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the statements instead of running them.")] = False,
    db_url: DbUrl = "",
) -> None:
    """Update the tables to the schema of this version: missing tables, columns, indexes and the recorded version.

    Idempotent. If several hosts run it concurrently, one migrates and the others wait. Workers may run during the
    migration, because it only adds. An ALTER TABLE fails after it has waited 10 s for a long transaction.

    Exit codes: 0 up to date, 1 the database refused, 2 usage error or no database.

    Examples:
        conquiet db migrate --dry-run

        conquiet db migrate --db-url postgresql+psycopg://app@db/shop

        conquiet db migrate shop:app
    """
    from conquiet.transactional import SCHEMA_VERSION, migrate_tables

    if target:
        statements = _load_app(target).migrate_tables(dry_run=dry_run)
    else:
        with open_database(db_url) as engine:
            statements = migrate_tables(engine, inbox=inbox, outbox=outbox, dry_run=dry_run)
    if dry_run:
        for statement in statements:
            typer.echo(f"{statement};")
        return
    done = f"{len(statements)} statements run" if statements else "nothing to do"
    typer.echo(f"schema {SCHEMA_VERSION}: {done}")


def _load_app(target: str) -> "App":
    from conquiet.app import App
    from conquiet.cli.worker.worker_loader import load_object

    found = load_object(target)
    if not isinstance(found, App):
        raise CommandError(f"{target} is a {type(found).__name__}, not an App", fix="name an App, or give --db-url")
    return found


@app.command()
def status(
    inbox: InboxTable = INBOX,
    outbox: OutboxTable = OUTBOX,
    db_url: DbUrl = "",
    as_json: AsJson = False,
) -> None:
    """Show the size of the inbox, the age of its oldest row, and the rows of the outbox. Changes nothing.

    Exit codes: 0 shown, 1 the database refused, 2 no database.

    Examples:
        conquiet db status
    """
    from conquiet.management.database_view import DatabaseView

    with open_database(db_url) as engine:
        view = DatabaseView(engine, inbox=inbox, outbox=outbox)
        size, targets = view.inbox(), view.backlog()
    waiting, parked = sum(one.waiting for one in targets), sum(one.parked for one in targets)
    oldest_age_s = max((one.oldest_age_s for one in targets), default=None)
    if as_json:
        print_json({"inbox": size.as_dict(), "outbox": {"waiting": waiting, "parked": parked}})
        return
    inbox_rows = f"{size.rows}{'' if size.complete else ' or more'}"
    rows: list[dict[str, Any]] = [
        {"table": inbox, "rows": inbox_rows, "oldest_age_s": size.oldest_age_s},
        {"table": outbox, "rows": str(waiting + parked), "parked": parked, "oldest_age_s": oldest_age_s},
    ]
    print_rows("Tables", ["table", "rows", "parked", "oldest_age_s"], rows, empty="")


@app.command()
def purge(
    older_than_s: Annotated[
        float, number_option("Age in seconds. No message may be delivered again after this time.", least=1)
    ],
    inbox: InboxTable = INBOX,
    batch: Annotated[int, typer.Option(min=1, max=100_000, help="Rows per transaction.")] = 500,
    db_url: DbUrl = "",
    as_json: AsJson = False,
) -> None:
    """Delete old rows of the inbox, in many short transactions. Safe while workers run.

    A message that is delivered again after its row was deleted has its effect a second time. docs/exactly-once.md
    explains how long to keep rows.

    Exit codes: 0 done, 1 the database refused, 2 no database.

    Examples:
        conquiet db purge --older-than-s 2592000
    """
    from conquiet.transactional import Inbox

    with open_database(db_url) as engine:
        deleted = Inbox(inbox).purge(engine, older_than_s=older_than_s, batch=batch)
    print_result({"deleted": deleted}, f"{deleted} rows deleted", as_json=as_json)
