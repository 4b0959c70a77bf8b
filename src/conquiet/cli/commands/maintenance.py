"""``conquiet pending``, ``reclaim``, ``remove-consumer`` and ``trim``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.connections import open_redis
from conquiet.cli.option_types import number_option
from conquiet.cli.output import print_result, print_rows
from conquiet.cli.settings import AsJson, DryRun, RedisUrl

if TYPE_CHECKING:
    from conquiet.management import PendingFilter, RedisAdmin

Stream = Annotated[str, typer.Argument(help="Key of the stream.")]
Group = Annotated[str, typer.Argument(help="Consumer group.")]


@dataclass(frozen=True, slots=True)
class PendingOptions:
    """The options that choose pending entries."""

    consumer: Annotated[str, typer.Option(help="Only entries of this consumer.")] = ""
    min_idle_s: Annotated[float, number_option("Only entries idle for at least this many seconds.")] = 0
    min_deliveries: Annotated[int, typer.Option(min=0, help="Only entries with at least this many deliveries.")] = 0
    dead_owners: Annotated[bool, typer.Option("--dead-owners", help="Only entries of owners that are proved dead.")] = (
        False
    )
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most entries.")] = 100

    def as_filter(self) -> "PendingFilter":
        """Return the filter."""
        from conquiet.management import PendingFilter

        return PendingFilter(
            consumer=self.consumer,
            min_idle_s=self.min_idle_s,
            min_deliveries=self.min_deliveries,
            dead_owners_only=self.dead_owners,
            limit=self.limit,
        )


def pending(
    stream: Stream,
    group: Group,
    *,
    where: PendingOptions,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Show entries that were delivered and not acknowledged: owner, idle time, deliveries. Changes nothing.

    The owner is live, idle, unknown or dead, as in inspect. Dead is proved; before Redis 7.2 the server proves no
    death. A trimmed entry was deleted from the stream and cannot be handled any more.

    Exit codes: 0 shown, 2 no server or no such stream or group.

    Examples:
        conquiet pending orders billing --min-idle-s 60

        conquiet pending orders billing --dead-owners --json
    """
    from conquiet.management import list_pending

    with open_redis(redis_url) as server:
        found = [facts.as_dict() for facts in list_pending(server, stream, group, where.as_filter())]
        _warn_about_unproved(server, stream, group, dead_owners=where.dead_owners)
    columns = ["id", "consumer", "idle_s", "deliveries", "owner", "trimmed"]
    print_rows(f"Pending in {stream}, group {group}", columns, found, empty="nothing is pending", as_json=as_json)


def reclaim(
    stream: Stream,
    group: Group,
    *,
    to: Annotated[str, typer.Option(help="New owner; by default the next worker that claims stale entries.")] = "",
    where: PendingOptions,
    reset_deliveries: Annotated[
        bool, typer.Option("--reset-deliveries", help="Set their delivery counts to 0, so that workers run them again.")
    ] = False,
    dry_run: DryRun = False,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Claim pending entries from their owners, so that other workers handle them.

    At least one filter is required. Delivery counts are kept, unless --reset-deliveries is given: then workers also
    run entries that were delivered more often than their max_deliveries.

    Exit codes: 0 done (or there was nothing to do), 2 no server, no such stream, or no filter.

    Examples:
        conquiet reclaim orders billing --dead-owners --dry-run

        conquiet reclaim orders billing --consumer host-7 --to host-8

        conquiet reclaim orders billing --min-deliveries 20 --reset-deliveries
    """
    from conquiet.management import reclaim as run

    chosen = where.as_filter()
    with open_redis(redis_url) as server:
        done = run(server, stream, group, chosen, owner=to, reset_deliveries=reset_deliveries, dry_run=dry_run)
        _warn_about_unproved(server, stream, group, dead_owners=where.dead_owners)
    verb = "would be reclaimed" if dry_run else "reclaimed"
    counts = ", with their delivery counts at 0" if done.reset else ""
    print_result(done.as_dict(), f"{len(done.ids)} entries {verb} for {done.owner}{counts}", as_json=as_json)


def _warn_about_unproved(server: "RedisAdmin", stream: str, group: str, *, dead_owners: bool) -> None:
    """Warn that --dead-owners left out entries of owners that may be dead."""
    from conquiet.management.models import ConsumerState
    from conquiet.management.overview import describe_stream, require_group

    if dead_owners:
        facts = require_group(describe_stream(server, stream), group)
        unproved = facts.with_pending(ConsumerState.UNKNOWN)
        if unproved:
            entries = sum(one.pending for one in unproved)
            typer.echo(
                f"conquiet: left out {entries} entries of {len(unproved)} consumers that may be dead or alive; this "
                "server cannot prove it. Choose by --consumer or --min-idle-s instead",
                err=True,
            )


def remove_consumer(
    stream: Stream,
    group: Group,
    consumer: Annotated[str, typer.Argument(help="The consumer to remove.")],
    new_owner: Annotated[str, typer.Option(help="Consumer that receives its pending entries.")] = "",
    min_idle_s: Annotated[float, number_option("Seconds without a read after which it counts as dead.")] = 60,
    force: Annotated[
        bool, typer.Option("--force", help="Skip the proof of death. Use only after stopping the consumer.")
    ] = False,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Delete a consumer that is proved dead, after its pending entries were transferred to a new owner.

    A liveness key proves that a worker is alive. Without a key, --min-idle-s seconds without a read prove its death on
    Redis 7.2 or newer and on Valkey. Older servers prove no death: stop the consumer, then give --force.

    Exit codes: 0 removed, 1 refused (alive, not proved dead, or pending entries and no new owner), 2 no server or no
    such consumer.

    Examples:
        conquiet remove-consumer orders billing host-7 --new-owner host-8

        conquiet remove-consumer orders billing host-7 --new-owner host-8 --force
    """
    from conquiet.management import remove_consumer as run

    with open_redis(redis_url) as server:
        done = run(server, stream, group, consumer, new_owner=new_owner, min_idle_s=min_idle_s, force=force)
    transferred = f"; {done.transferred} entries went to {done.new_owner}" if done.transferred else ""
    print_result(done.as_dict(), f"{done.consumer} removed{transferred}", as_json=as_json)


def trim(
    stream: Stream,
    older_than_s: Annotated[float, number_option("Keep entries younger than this many seconds.")] = 0,
    dry_run: DryRun = False,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Remove entries that every group has acknowledged. Pending and undelivered entries are kept.

    Exit codes: 0 done, 1 refused (the stream has no group), 2 no server or no such stream.

    Examples:
        conquiet trim orders --older-than-s 86400

        conquiet trim orders --dry-run
    """
    from conquiet.management import trim as run

    with open_redis(redis_url) as server:
        done = run(server, stream, older_than_s=older_than_s or None, dry_run=dry_run)
    if dry_run:
        sentence = f"entries before {done.below_id} are not needed by any group; {done.length} entries are there"
    else:
        sentence = f"{done.removed} entries removed; {done.length} are left"
    print_result(done.as_dict(), sentence, as_json=as_json)
