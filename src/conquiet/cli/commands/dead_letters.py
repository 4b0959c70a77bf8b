"""``conquiet dead-letters``: list, show, replay and discard dead letters, in Redis and in RabbitMQ."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.command_group import CommandGroup
from conquiet.cli.dead_letter_sources import Selection, ServerOptions, find_source
from conquiet.cli.option_types import number_option
from conquiet.cli.output import print_fact, print_json, print_result, print_rows, print_traceback, progress
from conquiet.cli.settings import AsJson, DryRun

if TYPE_CHECKING:
    from conquiet.core.replay_report import ReplayReport

app = CommandGroup(help="List, show, replay and discard dead letters.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The source stream; with --rabbit the dead-letter queue.")]
Rabbit = Annotated[bool, typer.Option("--rabbit", help="Use a RabbitMQ queue instead of a Redis stream.")]
Only = Annotated[str, typer.Option("--id", help="Only the dead letter with this id; with --rabbit a message id.")]
Everything = Annotated[bool, typer.Option("--all", help="All dead letters.")]
Limit = Annotated[int, typer.Option(min=0, help="Most dead letters; 0: no limit.")]
ShowPayload = Annotated[bool, typer.Option("--show-payload", help="Also print payloads, which may be personal data.")]

_GONE = "another process replayed or discarded them meanwhile"


@app.command("list")
def list_(
    name: Name,
    *,
    rabbit: Rabbit = False,
    where: Selection,
    limit: Limit = 100,
    show_payload: ShowPayload = False,
    servers: ServerOptions,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the oldest first.

    With --rabbit the messages are read and returned, which marks them as redelivered. A quorum queue counts that
    toward its delivery limit. A queue with a limit is read only with --count-a-delivery, and never from RabbitMQ 4.3
    on: the broker would delete every message with a delivery count above the limit.

    Exit codes: 0 listed, 2 no server, no such queue, or reading would count or delete.

    Examples:
        conquiet dead-letters list orders

        conquiet dead-letters list orders.dead --rabbit --json
    """
    place = find_source(name, servers, rabbit=rabbit)
    rows = place.rows(where, limit=limit or None, show_payload=show_payload)
    columns = [*place.columns, "payload"] if show_payload else place.columns
    empty = "no dead letter matches" if where.filters else "there are no dead letters"
    print_rows(f"Dead letters of {name}", columns, rows, empty=empty, as_json=as_json)


@app.command()
def show(
    name: Name,
    dead_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="Its id, as printed by 'list'; with --rabbit a message id or a position."),
    ],
    *,
    rabbit: Rabbit = False,
    show_payload: ShowPayload = False,
    servers: ServerOptions,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter with its history: error, traceback, attempts, times.

    Exit codes: 0 shown, 2 no server or no such dead letter.

    Examples:
        conquiet dead-letters show orders 1763244000000-0

        conquiet dead-letters show orders.dead 1 --rabbit --show-payload
    """
    place = find_source(name, servers, rabbit=rabbit)
    facts, last = place.show(dead_id, show_payload=show_payload)
    if as_json:
        print_json(facts)
        return
    for key, value in facts.items():
        if key != last:
            print_fact(key, ", ".join(value) if isinstance(value, list) else value, width=12)
    for death in facts.get("deaths", ()):
        text = f"{death['time'] or '-'} {death['reason']} in {death['queue']}, {death['count']} times"
        print_fact("died", text, width=12)
    print_traceback(facts.get("traceback", ""))


@app.command()
def causes(
    name: Name,
    *,
    rabbit: Rabbit = False,
    servers: ServerOptions,
    as_json: AsJson = False,
) -> None:
    """Count dead letters by cause, most frequent first.

    Exit codes: 0 shown, 2 no server or no such queue.

    Examples:
        conquiet dead-letters causes orders
    """
    place = find_source(name, servers, rabbit=rabbit)
    title, empty = f"Dead letters of {name}", "there are no dead letters"
    print_rows(title, place.cause_columns, place.causes(), empty=empty, as_json=as_json)


@app.command()
def replay(
    name: Name,
    *,
    rabbit: Rabbit = False,
    only: Only = "",
    where: Selection,
    everything: Everything = False,
    to: Annotated[str, typer.Option(help="Consumer group (or queue) to replay to, instead of the original one.")] = "",
    rate_per_s: Annotated[float, number_option("Most messages per second; 0: no limit.")] = 0,
    limit: Limit = 0,
    dry_run: DryRun = False,
    servers: ServerOptions,
    as_json: AsJson = False,
) -> None:
    """Return dead letters to their stream or queue; their attempts count from zero.

    A dead letter of a Redis stream is replayed only for its original consumer group. If that group no longer exists,
    the dead letter is kept, unless --to names another group.

    Exit codes: 0 done (or, with --all, there was nothing to do), 2 no server, no such queue, no filter and no
    --all, or no match.

    Examples:
        conquiet dead-letters replay orders --error TimeoutError --rate-per-s 50 --dry-run

        conquiet dead-letters replay orders --group processor --to processor-2

        conquiet dead-letters replay orders.dead --rabbit --source orders --error rejected
    """
    selection = where.choose(only, everything=everything)
    place = find_source(name, servers, rabbit=rabbit)
    chosen = place.where(selection)
    with progress("replayed") as show_completed:
        report: ReplayReport = place.run(
            lambda dead_letters: dead_letters.replay(
                chosen,
                dry_run=dry_run,
                rate_per_s=rate_per_s or None,
                limit=limit or None,
                to=to or None,
                on_progress=lambda so_far: show_completed(so_far.replayed),
            )
        )
    if not (report.matched or everything):
        raise place.no_match()
    if as_json:
        print_json(dataclasses.asdict(report))
        return
    typer.echo(f"{report.replayed} {'would be replayed' if dry_run else 'replayed'}")
    for count, what, why in (
        (report.unreplayable, "unreplayable", place.unreplayable),
        (report.gone, "gone", _GONE),
    ):
        if count:
            typer.echo(f"{count} {what}: {why}")


@app.command()
def discard(
    name: Name,
    *,
    rabbit: Rabbit = False,
    only: Only = "",
    where: Selection,
    everything: Everything = False,
    limit: Limit = 0,
    dry_run: DryRun = False,
    servers: ServerOptions,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters. This cannot be undone.

    Exit codes: 0 done (or, with --all, there was nothing to do), 2 no server, no such queue, no filter and no
    --all, or no match.

    Examples:
        conquiet dead-letters discard orders --id 1763244000000-0
    """
    selection = where.choose(only, everything=everything)
    place = find_source(name, servers, rabbit=rabbit)
    chosen = place.where(selection)
    count: int = place.run(lambda dead_letters: dead_letters.discard(chosen, dry_run=dry_run, limit=limit or None))
    if not (count or everything):
        raise place.no_match()
    sentence = f"{count} {'would be discarded' if dry_run else 'discarded'}"
    print_result({"discarded": count, "dry_run": dry_run}, sentence, as_json=as_json)
