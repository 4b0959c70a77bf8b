"""``conquiet jobs bulk`` and ``conquiet jobs reset``: change many jobs of a stream."""

from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.commands.jobs import Group, JobOptions, Stream, app, with_jobs
from conquiet.cli.errors import CommandError
from conquiet.cli.option_types import JobPhaseName, number_option
from conquiet.cli.output import print_json, print_result, progress
from conquiet.cli.settings import AsJson, DryRun, RedisUrl
from conquiet.management.jobs.models import BulkAction

__all__ = ["app"]

if TYPE_CHECKING:
    from conquiet.management import BulkReport, ResetReport


@app.command()
def bulk(
    action: Annotated[BulkAction, typer.Argument(help="Change of each job.")],
    stream: Stream,
    *,
    phase: Annotated[JobPhaseName, typer.Option("--phase", "-p", help="Phase of the jobs. Required.")],
    where: JobOptions,
    everything: Annotated[bool, typer.Option("--all", help="All jobs of the phase.")] = False,
    delay_s: Annotated[float, number_option("For reschedule: seconds until the jobs are due.")] = 0,
    rate_per_s: Annotated[float, number_option("Most jobs per second; 0: no limit.")] = 0,
    limit: Annotated[int, typer.Option(min=0, help="Most jobs; 0: no limit.")] = 0,
    name: Annotated[str, typer.Option(help="Name of the run. The same command with this name resumes the run.")] = "",
    dry_run: DryRun = False,
    group: Group = "",
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Cancel, run now, reschedule or retry all jobs that match a filter.

    The progress is stored in Redis for seven days under the run's name. If this process ends, the same command with
    --name continues the run; no job is changed twice. Jobs emitted after the start of the run are not changed. For
    running jobs a cancellation is requested, and the command does not wait for it.

    Exit codes: 0 done, 2 no server, no filter and no --all, or the action does not apply to the phase.

    Examples:
        conquiet jobs bulk cancel orders --phase delayed --event mail.remind --dry-run

        conquiet jobs bulk retry orders --phase dead --error TimeoutError --rate-per-s 50 --name monday
    """
    chosen = where.as_filter()
    if everything != chosen.is_empty:
        raise CommandError(
            "choose the jobs", fix="give --event, --id, --older-than-s, --newer-than-s or --error, or --all alone"
        )
    with progress("read") as show_completed:
        report: BulkReport = with_jobs(
            redis_url,
            stream,
            group,
            lambda jobs: jobs.bulk(
                action,
                phase.value,
                chosen,
                name=name or None,
                dry_run=dry_run,
                delay_s=delay_s if action is BulkAction.RESCHEDULE else None,
                rate_per_s=rate_per_s or None,
                limit=limit or None,
                on_progress=lambda so_far: show_completed(so_far.scanned),
            ),
        )
    if as_json:
        print_json(report.as_dict())
        return
    if dry_run:
        typer.echo(f"{report.matched} of {report.scanned} jobs match: nothing was changed")
        return
    typer.echo(f"{report.changed} of {report.matched} jobs changed (run {report.name})")
    for count, what in (
        (report.requested, "are running: their workers will decide"),
        (report.gone, "had moved on meanwhile"),
        (report.refused, "were left as they are, or had their effect"),
    ):
        if count:
            typer.echo(f"{count} {what}")


@app.command()
def reset(
    stream: Stream,
    confirm: Annotated[str, typer.Option("--confirm", metavar="STREAM", help="Repeat the name of the stream.")] = "",
    dry_run: DryRun = False,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Delete waiting, delayed, parked and dead jobs of every group. Running jobs are not changed.

    Exit codes: 0 done, 2 no server, or not confirmed: nothing was deleted.

    Examples:
        conquiet jobs reset orders --dry-run

        conquiet jobs reset orders --confirm orders
    """
    if not dry_run and confirm != stream:
        raise CommandError(
            f"a reset deletes the jobs of {stream} permanently, and was not confirmed",
            fix=f"check with --dry-run, then give --confirm {stream}",
        )
    report: ResetReport = with_jobs(
        redis_url, stream, "", lambda jobs: jobs.reset(confirm=confirm or None, dry_run=dry_run)
    )
    counts = f"{report.entries} entries, {report.delayed} delayed, {report.parked} parked, {report.dead} dead"
    if report.behind:
        counts += f", {report.behind} behind others of their key"
    sentence = f"{counts} {'would be deleted' if dry_run else 'deleted'}"
    print_result(report.as_dict(), sentence, as_json=as_json)
