"""``conquiet jobs``: list, show and change the jobs of a processor's stream."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from conquiet.cli.command_group import CommandGroup
from conquiet.cli.connections import call_redis
from conquiet.cli.errors import CommandError
from conquiet.cli.option_types import JobPhaseName, number_option
from conquiet.cli.output import moment, print_fact, print_json, print_result, print_rows, print_traceback
from conquiet.cli.settings import AsJson, RedisUrl
from conquiet.core.redaction import printable

if TYPE_CHECKING:
    from conquiet.management import ChangeReport, JobFilter, JobHistory, JobList, JobReport

T = TypeVar("T")

app = CommandGroup(help="List, show and change the jobs of a Processor.", no_args_is_help=True)

Stream = Annotated[str, typer.Argument(help="The stream.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The message's id, as printed by 'jobs list'.")]
Group = Annotated[str, typer.Option(help="The consumer group; required if the stream has several.")]
ShowPayload = Annotated[bool, typer.Option("--show-payload", help="Also print data, which may be personal data.")]

DeadId = Annotated[str, typer.Argument(metavar="PLACE", help="Id of the dead letter: 'place' in 'jobs list'.")]
RetryGroup = Annotated[str, typer.Option(help="Consumer group to retry for, instead of the original one.")]

_COLUMNS = ("id", "event", "phase", "attempt", "age_s", "due", "place", "consumer", "error")


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options that choose jobs."""

    event: Annotated[str, typer.Option(help="Only jobs of this event.")] = ""
    only: Annotated[str, typer.Option("--id", help="Only the job with this id.")] = ""
    older_than_s: Annotated[float, number_option("Only jobs emitted at least this many seconds ago.")] = 0
    newer_than_s: Annotated[float, number_option("Only jobs emitted at most this many seconds ago.")] = 0
    error: Annotated[str, typer.Option("--error", help="Only dead jobs with this error or reason.")] = ""

    def as_filter(self, *, key: str = "") -> "JobFilter":
        """Return the filter."""
        from conquiet.management import JobFilter

        return JobFilter(
            event=self.event or None,
            id=self.only or None,
            min_age_s=self.older_than_s or None,
            max_age_s=self.newer_than_s or None,
            error=self.error or None,
            key=key or None,
        )


@app.command("list")
def list_(
    stream: Stream,
    *,
    phase: Annotated[JobPhaseName, typer.Option("--phase", "-p", help="Phase of the jobs.")] = JobPhaseName.WAITING,
    where: JobOptions,
    key: Annotated[str, typer.Option("--key", help="Only jobs of this key.")] = "",
    group: Group = "",
    limit: Annotated[int, typer.Option(min=1, help="Most jobs.")] = 100,
    cursor: Annotated[str, typer.Option(help="Cursor printed by the previous page.")] = "",
    show_payload: ShowPayload = False,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """List jobs of one phase: waiting, behind (others of their key), delayed, running, retrying, parked or dead.

    One call reads at most 2000 messages. If there are more, it prints the cursor for the next call, even after a page
    without matches.

    Exit codes: 0 listed, 2 no server, no such group, or several groups and none named.

    Examples:
        conquiet jobs list orders --phase delayed --event mail.remind

        conquiet jobs list orders --phase dead --error TimeoutError --older-than-s 3600 --json
    """
    chosen = where.as_filter(key=key)
    page: JobList = with_jobs(
        redis_url,
        stream,
        group,
        lambda jobs: jobs.list(phase.value, chosen, cursor=cursor or None, limit=limit, with_data=show_payload),
    )
    rows = [_row(job, show_payload=show_payload) for job in page.jobs]
    if as_json:
        print_json({"jobs": rows, "cursor": page.cursor, "scanned": page.scanned})
        return
    columns = (*_COLUMNS, "data") if show_payload else _COLUMNS
    print_rows(f"Jobs of {stream}, {phase.value}", columns, rows, empty=f"no job is {phase.value} and matches")
    if page.cursor is not None:
        typer.echo(f"conquiet: {page.scanned} read, there is more: --cursor '{page.cursor}'", err=True)


@app.command()
def show(
    stream: Stream,
    job_id: JobId,
    group: Group = "",
    show_payload: ShowPayload = False,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Show one job: its places, states, error, cancellation and progress.

    Exit codes: 0 shown, 2 no server, or the job is unknown.

    Examples:
        conquiet jobs show orders 5f0c9a
    """
    history: JobHistory = with_jobs(redis_url, stream, group, lambda jobs: jobs.show(job_id, with_data=show_payload))
    if history.phase is None:
        raise _no_such_job(stream, job_id, complete=history.complete)
    facts = history.as_dict() | {"places": [_row(job, show_payload=show_payload) for job in history.places]}
    if as_json:
        print_json(facts)
        return
    for name in ("id", "phase", "error_type", "has_result"):
        print_fact(name, facts[name])
    for place in facts["places"]:
        text = ", ".join(
            f"{name} {value}" for name, value in place.items() if value not in {None, "", 0} and name != "id"
        )
        print_fact("place", text)
    for name, at_ms in history.times_ms.items():
        print_fact(name, moment(at_ms))
    if history.progress is not None:
        print_fact("progress", f"{history.progress.fraction:.0%} {history.progress.text}")
    if history.cancellation is not None:
        known = history.cancellation
        print_fact("cancellation", f"{known.state} {moment(known.at_ms)}, while {known.while_in}")
    _print_attempts(history)
    print_traceback(history.traceback)


@app.command()
def cancel(
    stream: Stream,
    job_id: JobId,
    wait_s: Annotated[float, number_option("Seconds to wait for the worker.")] = 10,
    group: Group = "",
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Cancel one job. It either has its effect or is cancelled, and the output reports which.

    A waiting job is removed immediately. For a running job its worker decides: async handlers are cancelled, threads
    can check ctx.cancelled. After its COMMIT a job is never cancelled.

    Exit codes: 0 cancelled, 1 it had its effect, is dead, or is not decided yet, 2 no server or no such job.

    Examples:
        conquiet jobs cancel orders 5f0c9a
    """
    _report(stream, with_jobs(redis_url, stream, group, lambda jobs: jobs.cancel(job_id, timeout_s=wait_s)), as_json)


@app.command("run-now")
def run_now(
    stream: Stream, job_id: JobId, group: Group = "", redis_url: RedisUrl = "", as_json: AsJson = False
) -> None:
    """Move a delayed or retrying job to its stream now; its attempt number is kept.

    Exit codes: 0 done, 1 the job is not delayed, 2 no server or no such job.

    Examples:
        conquiet jobs run-now orders 5f0c9a
    """
    _report(stream, with_jobs(redis_url, stream, group, lambda jobs: jobs.run_now(job_id)), as_json)


@app.command()
def reschedule(
    stream: Stream,
    job_id: JobId,
    delay_s: Annotated[float, number_option("Seconds until the job is due.")],
    group: Group = "",
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Change the due time of a delayed or retrying job.

    Exit codes: 0 done, 1 the job is not delayed, 2 no server or no such job.

    Examples:
        conquiet jobs reschedule orders 5f0c9a --delay-s 86400
    """
    report = with_jobs(redis_url, stream, group, lambda jobs: jobs.reschedule(job_id, delay_s=delay_s))
    _report(stream, report, as_json, moved=f"is due in {delay_s:g} s")


@app.command()
def retry(
    stream: Stream,
    dead_id: DeadId,
    data: Annotated[str, typer.Option("--data", metavar="JSON|@FILE", help="New data: a JSON object.")] = "",
    to: RetryGroup = "",
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Retry one dead letter, with other data if --data is given; its attempts count from zero.

    'jobs edit' does the same with an editor. 'dead-letters replay' retries many dead letters.

    Exit codes: 0 retried, 1 it was not a message, 2 no server, no such dead letter or group, or no JSON object.

    Examples:
        conquiet jobs retry orders 1763244000000-0 --data '{"iban": "DE02"}'
    """
    from conquiet.cli.payload_input import read_payloads

    changed = next(iter(read_payloads(data)), None) if data else None
    report = with_jobs(redis_url, stream, "", lambda jobs: jobs.edit_and_retry(dead_id, changed, group=to or None))
    _report(stream, report, as_json)


@app.command()
def edit(
    stream: Stream, dead_id: DeadId, to: RetryGroup = "", redis_url: RedisUrl = "", as_json: AsJson = False
) -> None:
    """Edit the data of one dead letter in $EDITOR, and retry it. Without an edit it is not retried.

    Exit codes: 0 retried, 1 not edited, 2 no server, no such dead letter or group, or no JSON object.

    Examples:
        conquiet jobs edit orders 1763244000000-0
    """
    import json

    import click

    dead: JobReport | None = with_jobs(redis_url, stream, "", lambda jobs: jobs.dead_letter(dead_id))
    if dead is None:
        raise CommandError(
            f"stream {printable(stream)} has no dead letter {printable(dead_id)}",
            fix=f"see them with: conquiet jobs list {stream} --phase dead",
        )
    changed = click.edit(json.dumps(dead.data, indent=2, ensure_ascii=False), extension=".json")
    if changed is None:
        typer.echo("left as it was: nothing is retried")
        raise typer.Exit(1)
    try:
        data = json.loads(changed)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise CommandError("the saved text is not a JSON object", fix="edit it again: nothing was changed")
    report = with_jobs(redis_url, stream, "", lambda jobs: jobs.edit_and_retry(dead_id, data, group=to or None))
    _report(stream, report, as_json)


def with_jobs(redis_url: str, stream: str, group: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Run ``await work(JobAdmin)`` on the configured Redis."""

    async def run(client: Any) -> T:
        from conquiet.management import JobAdmin

        return await work(JobAdmin(client, stream, group=group or None))

    # is_stream raises if the key has another type.
    return call_redis(redis_url, run, check=lambda server: server.is_stream(stream))


def _report(stream: str, report: "ChangeReport", as_json: bool, *, moved: str = "is on its way") -> None:
    """Print the result of a change, and exit with 1 if the job was not changed as requested."""
    from conquiet.management import JobChange

    if report.change is JobChange.GONE:
        raise _no_such_job(stream, report.id, complete=not report.note)
    note = f": {report.note}" if report.note else ""
    was = "" if report.phase is None else f" (it was {report.phase.value})"
    words = moved if report.change is JobChange.MOVED else _WORDS[report.change.value]
    print_result(report.as_dict(), f"{printable(report.id)} {words}{was}{note}", as_json=as_json)
    if report.change not in {JobChange.CANCELLED, JobChange.MOVED}:
        raise typer.Exit(1)


_WORDS = {
    "cancelled": "is cancelled",
    "requested": "is running: its worker will cancel it",
    "finished": "had its effect and is not cancelled",
    "refused": "is left as it is",
}


def _no_such_job(stream: str, job_id: str, *, complete: bool) -> CommandError:
    far = "" if complete else " among the messages that were read"
    return CommandError(
        f"nothing is known of job {printable(job_id)} in stream {printable(stream)}{far}",
        fix=f"see its jobs with: conquiet jobs list {stream}, or conquiet inspect",
    )


def _row(job: "JobReport", *, show_payload: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": job.id,
        "event": job.event,
        "phase": job.phase.value,
        "attempt": job.attempt,
        "age_s": round(job.age_s, 1),
        "due": None if job.due_ms is None else moment(job.due_ms),
        "place": job.place or None,
        "group": job.group or None,
        "consumer": job.consumer or None,
        "deliveries": job.deliveries,
        "error": job.error_type or job.reason or None,
        "key": job.key or None,
    }
    return row | {"data": job.data} if show_payload else row


def _print_attempts(history: "JobHistory") -> None:
    """Print the job's attempts, the message that caused it, and the messages that it caused."""
    for attempt in history.attempts:
        took = "" if attempt.duration_s is None else f" after {attempt.duration_s * 1000:.0f} ms"
        how = f"failed{took}: {attempt.error_type}" if attempt.error_type else f"succeeded{took}"
        print_fact(f"attempt {attempt.attempt}", f"{how} {attempt.frames}".rstrip())
    if history.caused_by is not None:
        print_fact("caused by", f"{history.caused_by.id} of {history.caused_by.place}")
    for caused in history.caused:
        print_fact("caused", f"{caused.id} to {caused.place}")
