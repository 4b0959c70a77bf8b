"""``conquiet pending``, ``reclaim``, ``retire`` and ``trim``: what is left over, and tidying it without loss."""

from typing import Annotated

import typer

from conquiet.cli.connecting import redis_server
from conquiet.cli.failures import reported
from conquiet.cli.numbers import finite
from conquiet.cli.output import print_json, print_rows
from conquiet.cli.settings import AsJson, RedisUrl

Stream = Annotated[str, typer.Argument(help="Key of the stream.")]
Group = Annotated[str, typer.Argument(help="Consumer group.")]
Consumer = Annotated[str, typer.Option(help="Only entries of this consumer.")]
MinIdle = Annotated[float, typer.Option(min=0, callback=finite, help="Only entries untouched for so many seconds.")]
MinDeliveries = Annotated[int, typer.Option(min=0, help="Only entries delivered at least so often.")]
Ghosts = Annotated[bool, typer.Option("--ghosts", help="Only entries whose owner is dead.")]
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


@reported
def pending(
    stream: Stream,
    group: Group,
    consumer: Consumer = "",
    min_idle: MinIdle = 0,
    min_deliveries: MinDeliveries = 0,
    ghosts: Ghosts = False,
    limit: Limit = 100,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Show what was delivered and not acknowledged: owner, idle time, deliveries. Changes nothing.

    A ghost's owner is dead; a trimmed entry was deleted from the stream, so nothing is left of it to handle.

    Exit codes: 0 shown, 2 no server or no such stream or group.

    Examples:
        conquiet pending orders billing --min-idle 60

        conquiet pending orders billing --ghosts --json
    """
    from conquiet.management import PendingFilter, list_pending

    wanted = PendingFilter(
        consumer=consumer,
        min_idle_ms=round(min_idle * 1000),
        min_deliveries=min_deliveries,
        ghosts_only=ghosts,
        limit=limit,
    )
    with redis_server(redis_url) as server:
        found = [facts.as_dict() for facts in list_pending(server, stream, group, wanted)]
    if as_json:
        print_json(found)
        return
    columns = ["id", "consumer", "idle_ms", "deliveries", "ghost", "trimmed"]
    print_rows(f"Pending in {stream}, group {group}", columns, found, empty="nothing is pending")


@reported
def reclaim(
    stream: Stream,
    group: Group,
    to: Annotated[str, typer.Option(help="New owner; without it, the next worker that looks takes them.")] = "",
    consumer: Consumer = "",
    min_idle: MinIdle = 0,
    min_deliveries: MinDeliveries = 0,
    ghosts: Ghosts = False,
    limit: Limit = 100,
    dry_run: DryRun = False,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Take pending entries away from who holds them, so that somebody else handles them.

    At least one filter is needed. Delivery counts stay as they are.

    Exit codes: 0 done (also if there was nothing to do), 2 no server, no such stream, or no filter.

    Examples:
        conquiet reclaim orders billing --ghosts --dry-run

        conquiet reclaim orders billing --consumer host-7 --to host-8
    """
    from conquiet.management import PendingFilter
    from conquiet.management import reclaim as carry_out

    wanted = PendingFilter(
        consumer=consumer,
        min_idle_ms=round(min_idle * 1000),
        min_deliveries=min_deliveries,
        ghosts_only=ghosts,
        limit=limit,
    )
    with redis_server(redis_url) as server:
        done = carry_out(server, stream, group, wanted, owner=to, dry_run=dry_run)
    if as_json:
        print_json(done.as_dict())
        return
    verb = "would be reclaimed" if dry_run else "reclaimed"
    typer.echo(f"{len(done.ids)} entries {verb} for {done.owner}")


@reported
def retire(
    stream: Stream,
    group: Group,
    consumer: Annotated[str, typer.Argument(help="The consumer that is gone.")],
    heir: Annotated[str, typer.Option(help="Who gets what it has pending.")] = "",
    min_idle: Annotated[
        float, typer.Option(min=0, callback=finite, help="It counts as gone after so many seconds.")
    ] = 60,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Delete a dead consumer, after its pending entries were handed to an heir, in one step.

    Exit codes: 0 retired, 1 refused (it is alive, or has pending entries and no heir), 2 no server or no such consumer.

    Examples:
        conquiet retire orders billing host-7 --heir host-8
    """
    from conquiet.management import retire as carry_out

    with redis_server(redis_url) as server:
        done = carry_out(server, stream, group, consumer, heir=heir, min_idle_ms=round(min_idle * 1000))
    if as_json:
        print_json(done.as_dict())
        return
    over = f"; {done.handed_over} entries went to {done.heir}" if done.handed_over else ""
    typer.echo(f"{done.consumer} retired{over}")


@reported
def trim(
    stream: Stream,
    older_than: Annotated[
        float, typer.Option(min=0, callback=finite, help="Keep what is younger than so many seconds.")
    ] = 0,
    dry_run: DryRun = False,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Remove entries that every group is done with. Never one that is pending or not yet delivered.

    Exit codes: 0 done, 1 refused (no group says what is needed), 2 no server or no such stream.

    Examples:
        conquiet trim orders --older-than 86400

        conquiet trim orders --dry-run
    """
    from conquiet.management import trim as carry_out

    with redis_server(redis_url) as server:
        done = carry_out(server, stream, older_than_s=older_than or None, dry_run=dry_run)
    if as_json:
        print_json(done.as_dict())
        return
    if dry_run:
        typer.echo(f"entries before {done.below_id} are not needed by any group; {done.length} entries are there")
    else:
        typer.echo(f"{done.removed} entries removed, all before {done.below_id}; {done.length} are left")
