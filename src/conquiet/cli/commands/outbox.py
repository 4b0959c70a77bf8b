"""``conquiet outbox``: show unpublished and parked messages, and unpark them."""

from typing import Annotated

import typer

from conquiet.cli.command_group import CommandGroup
from conquiet.cli.connections import open_database
from conquiet.cli.errors import CommandError
from conquiet.cli.output import print_json, print_result, print_rows
from conquiet.cli.settings import OUTBOX, AsJson, DbUrl, OutboxTable

app = CommandGroup(help="Show the backlog of the outbox; unpark messages.", no_args_is_help=True)


@app.command("list")
def backlog(outbox: OutboxTable = OUTBOX, db_url: DbUrl = "", as_json: AsJson = False) -> None:
    """Show the backlog by target: waiting rows, age of the oldest row, parked rows. Changes nothing.

    If the oldest row of a target grows older, no relay runs for it, or the relay cannot reach the target.

    Exit codes: 0 shown, 1 the database refused, 2 no database.

    Examples:
        conquiet outbox list

        conquiet outbox list --json
    """
    from conquiet.management.database_view import DatabaseView

    with open_database(db_url) as engine:
        rows = [one.as_dict() for one in DatabaseView(engine, outbox=outbox).backlog()]
    if as_json:
        print_json({"targets": rows})
    else:
        print_rows("Outbox", ["target", "waiting", "oldest_age_s", "parked"], rows, empty="the outbox is empty")


@app.command()
def parked(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most rows.")] = 100,
    outbox: OutboxTable = OUTBOX,
    db_url: DbUrl = "",
    as_json: AsJson = False,
) -> None:
    """Show parked messages, which failed too often, the oldest first. Payloads are not shown.

    Exit codes: 0 shown, 1 the database refused, 2 no database.

    Examples:
        conquiet outbox parked --limit 20
    """
    from dataclasses import asdict

    from conquiet.management.database_view import DatabaseView

    with open_database(db_url) as engine:
        rows = [asdict(one) for one in DatabaseView(engine, outbox=outbox).parked(limit=limit)]
    if as_json:
        print_json({"parked": rows})
    else:
        columns = ["seq", "target", "attempts", "age_s", "reason", "message_id"]
        print_rows("Parked", columns, rows, empty="nothing is parked")


@app.command()
def unpark(
    seq: Annotated[list[int] | None, typer.Argument(help="Numbers printed by 'conquiet outbox parked'.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All parked messages.")] = False,
    target: Annotated[str, typer.Option(help="With --all: only messages of this target.")] = "",
    outbox: OutboxTable = OUTBOX,
    db_url: DbUrl = "",
    as_json: AsJson = False,
) -> None:
    """Unpark messages, so that the relay retries them with all attempts.

    Exit codes: 0 done, 1 a number is not parked or the database refused, 2 usage error or no database.

    Examples:
        conquiet outbox unpark 17 18

        conquiet outbox unpark --all --target ledger
    """
    from conquiet.management.database_view import DatabaseView

    if bool(seq) == every or (target and not every):
        raise CommandError(
            "name the messages, or all of them",
            fix="conquiet outbox unpark 17 18, or conquiet outbox unpark --all [--target NAME]",
        )
    with open_database(db_url) as engine:
        view = DatabaseView(engine, outbox=outbox)
        done = view.unpark(seq) if seq else view.unpark_all(target=target or None)
    print_result({"released": done}, f"{done} released", as_json=as_json)
    if seq and done < len(seq):
        raise typer.Exit(1)
