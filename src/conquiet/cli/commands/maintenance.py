"""``conquiet pending``, ``reclaim``, ``remove-consumer`` and ``trim``."""

from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.connections import open_redis
from conquiet.cli.errors import handle_errors
from conquiet.cli.option_types import finite
from conquiet.cli.output import print_json, print_rows
from conquiet.cli.settings import AsJson, RedisUrl

if TYPE_CHECKING:
    from conquiet.management import RedisAdmin

Stream = Annotated[str, typer.Argument(help="Key of the stream.")]
Group = Annotated[str, typer.Argument(help="Consumer group.")]
Consumer = Annotated[str, typer.Option(help="Only entries of this consumer.")]
MinIdle = Annotated[float, typer.Option(min=0, callback=finite, help="Only entries untouched for so many seconds.")]
MinDeliveries = Annotated[int, typer.Option(min=0, help="Only entries delivered at least so often.")]
DeadOwners = Annotated[bool, typer.Option("--dead-owners", help="Only entries whose owner is proved dead.")]
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Report what would be done, and do nothing.")]


@handle_errors
def pending(
    stream: Stream,
    group: Group,
    consumer: Consumer = "",
    min_idle: MinIdle = 0,
    min_deliveries: MinDeliveries = 0,
    dead_owners: DeadOwners = False,
    limit: Limit = 100,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Show what was delivered and not acknowledged: owner, idle time, deliveries. Changes nothing.

    The owner is live, idle, unknown or dead, as in inspect. Dead is proved; before Redis 7.2 the server proves no
    death. A trimmed entry was deleted from the stream, so there is nothing left to handle.

    Exit codes: 0 shown, 2 no server or no such stream or group.

    Examples:
        conquiet pending orders billing --min-idle 60

        conquiet pending orders billing --dead-owners --json
    """
    from conquiet.management import PendingFilter, list_pending

    where = PendingFilter(
        consumer=consumer,
        min_idle_ms=round(min_idle * 1000),
        min_deliveries=min_deliveries,
        dead_owners_only=dead_owners,
        limit=limit,
    )
    with open_redis(redis_url) as server:
        found = [facts.as_dict() for facts in list_pending(server, stream, group, where)]
        _warn_about_unproved(server, stream, group, dead_owners=dead_owners)
    if as_json:
        print_json(found)
        return
    columns = ["id", "consumer", "idle_ms", "deliveries", "owner", "trimmed"]
    print_rows(f"Pending in {stream}, group {group}", columns, found, empty="nothing is pending")


@handle_errors
def reclaim(
    stream: Stream,
    group: Group,
    to: Annotated[str, typer.Option(help="New owner; without it, the next worker that claims takes them.")] = "",
    consumer: Consumer = "",
    min_idle: MinIdle = 0,
    min_deliveries: MinDeliveries = 0,
    dead_owners: DeadOwners = False,
    limit: Limit = 100,
    reset_deliveries: Annotated[
        bool, typer.Option("--reset-deliveries", help="Set their delivery counts to 0, so that engines run them again.")
    ] = False,
    dry_run: DryRun = False,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Claim pending entries from their owners, so that other workers handle them.

    At least one filter is needed. Delivery counts stay as they are, unless --reset-deliveries is given: then workers
    also run what was delivered more often than their max_deliveries.

    Exit codes: 0 done (also if there was nothing to do), 2 no server, no such stream, or no filter.

    Examples:
        conquiet reclaim orders billing --dead-owners --dry-run

        conquiet reclaim orders billing --consumer host-7 --to host-8

        conquiet reclaim orders billing --min-deliveries 20 --reset-deliveries
    """
    from conquiet.management import PendingFilter
    from conquiet.management import reclaim as run

    where = PendingFilter(
        consumer=consumer,
        min_idle_ms=round(min_idle * 1000),
        min_deliveries=min_deliveries,
        dead_owners_only=dead_owners,
        limit=limit,
    )
    with open_redis(redis_url) as server:
        done = run(server, stream, group, where, owner=to, reset_deliveries=reset_deliveries, dry_run=dry_run)
        _warn_about_unproved(server, stream, group, dead_owners=dead_owners)
    if as_json:
        print_json(done.as_dict())
        return
    verb = "would be reclaimed" if dry_run else "reclaimed"
    counts = ", with their delivery counts at 0" if done.reset else ""
    typer.echo(f"{len(done.ids)} entries {verb} for {done.owner}{counts}")


def _warn_about_unproved(server: "RedisAdmin", stream: str, group: str, *, dead_owners: bool) -> None:
    """Warn that --dead-owners left out entries whose owner may be dead."""
    from conquiet.management.models import ConsumerState
    from conquiet.management.overview import describe_stream, require_group

    if dead_owners:
        facts = require_group(describe_stream(server, stream), group)
        unproved = facts.with_pending(ConsumerState.UNKNOWN)
        if unproved:
            entries = sum(one.pending for one in unproved)
            typer.echo(
                f"conquiet: left out {entries} entries of {len(unproved)} consumers that may be dead or alive; this "
                "server cannot prove it. Choose by --consumer or --min-idle instead",
                err=True,
            )


@handle_errors
def remove_consumer(
    stream: Stream,
    group: Group,
    consumer: Annotated[str, typer.Argument(help="The consumer to remove.")],
    new_owner: Annotated[str, typer.Option(help="The consumer that gets its pending entries.")] = "",
    min_idle: Annotated[
        float, typer.Option(min=0, callback=finite, help="It counts as dead after so many seconds without a read.")
    ] = 60,
    force: Annotated[
        bool, typer.Option("--force", help="You made sure that it is stopped: no proof by the server is needed.")
    ] = False,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Delete a consumer that is proved dead, after its pending entries were transferred to a new owner.

    A worker's liveness key proves that it is alive. Without one, --min-idle without a read proves its death on Redis
    7.2 or newer and on Valkey. Before, nothing does: make sure that it is stopped, and give --force.

    Exit codes: 0 removed, 1 refused (alive, not proved dead, or pending entries and no new owner), 2 no server or no
    such consumer.

    Examples:
        conquiet remove-consumer orders billing host-7 --new-owner host-8

        conquiet remove-consumer orders billing host-7 --new-owner host-8 --force
    """
    from conquiet.management import remove_consumer as run

    with open_redis(redis_url) as server:
        done = run(
            server, stream, group, consumer, new_owner=new_owner, min_idle_ms=round(min_idle * 1000), force=force
        )
    if as_json:
        print_json(done.as_dict())
        return
    transferred = f"; {done.transferred} entries went to {done.new_owner}" if done.transferred else ""
    typer.echo(f"{done.consumer} removed{transferred}")


@handle_errors
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

    Exit codes: 0 done, 1 refused (without a group it is not known what is needed), 2 no server or no such stream.

    Examples:
        conquiet trim orders --older-than 86400

        conquiet trim orders --dry-run
    """
    from conquiet.management import trim as run

    with open_redis(redis_url) as server:
        done = run(server, stream, older_than_s=older_than or None, dry_run=dry_run)
    if as_json:
        print_json(done.as_dict())
        return
    if dry_run:
        typer.echo(f"entries before {done.below_id} are not needed by any group; {done.length} entries are there")
    else:
        typer.echo(f"{done.removed} entries removed; {done.length} are left")
