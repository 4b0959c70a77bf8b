"""``conquiet dead-letters``: what was given up, in Redis and in RabbitMQ."""

import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.connecting import broker, redis_server
from conquiet.cli.failures import CommandError, reported
from conquiet.cli.letters import WHOLE, facts_of_delivery, facts_of_message, print_delivery, print_facts, time_of
from conquiet.cli.numbers import finite
from conquiet.cli.output import print_json, print_rows
from conquiet.cli.progress import progress
from conquiet.cli.settings import RABBIT, REDIS, AsJson, RabbitUrl, RedisUrl, need_url
from conquiet.kernel.redaction import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conquiet.management.dead_letters import StreamDeadLetters
    from conquiet.management.rabbit_queues import DeliveryFilter, QueueDeadLetters
    from conquiet.processor import DeadFilter, ReplayReport

app = typer.Typer(help="List, show, replay and discard what was given up.", no_args_is_help=True)

_API = "CONQUIET_RABBIT_API_URL"

Name = Annotated[str, typer.Argument(help="The stream the messages were in; with --rabbit the dead-letter queue.")]
Rabbit = Annotated[bool, typer.Option("--rabbit", help="A RabbitMQ queue instead of a Redis stream.")]
Event = Annotated[str, typer.Option(help="Only of this event.")]
ErrorType = Annotated[
    str, typer.Option("--error", help="Only those that died of this: an error, or a reason, as 'groups' names it.")
]
Source = Annotated[str, typer.Option(help="With --rabbit: only those that died in this queue.")]
Group = Annotated[str, typer.Option(help="Only those that died in this consumer group of a Redis stream.")]
Only = Annotated[str, typer.Option("--id", help="Only this one; with --rabbit a message id.")]
Limit = Annotated[int, typer.Option(min=0, help="At most so many; 0 is no limit.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Api = Annotated[
    str, typer.Option("--rabbit-api", metavar="URL", help=f"RabbitMQ's management API. Else ${_API}, else port 15672.")
]
CountADelivery = Annotated[
    bool,
    typer.Option("--count-a-delivery", help="With --rabbit: look even if that counts toward the delivery limit."),
]
ShowPayload = Annotated[bool, typer.Option("--show-payload", help="Print payloads too: they may be personal data.")]

_NOT_REPLAYED = {
    "skipped": "they do not say where they died and stay; give --to QUEUE",
    "unreplayable": "no messages in the first place, or of a group that is not there (give --to GROUP); they stay",
    "gone": "somebody else replayed or discarded them meanwhile",
}
_LIFT = (
    "take the limit from the queue (from RabbitMQ 4.0 on by a policy with delivery-limit -1, which holds at once, but "
    "not against an argument of the queue), or bring all to a queue without one: replay --all --to QUEUE"
)
_COLUMNS = ["id", "event", "group", "reason", "error", "attempts", "died"]


@app.command("list")
@reported
def list_(
    name: Name,
    rabbit: Rabbit = False,
    event: Event = "",
    error: ErrorType = "",
    source: Source = "",
    group: Group = "",
    limit: Limit = 100,
    show_payload: ShowPayload = False,
    redis_url: RedisUrl = "",
    rabbit_url: RabbitUrl = "",
    rabbit_api: Api = "",
    count_a_delivery: CountADelivery = False,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the oldest first.

    With --rabbit the messages are taken and put back, and are marked as redelivered afterwards. A quorum queue counts
    that toward its delivery limit; one that has a limit is looked into only with --count-a-delivery, and from
    RabbitMQ 4.3 on not at all: it would delete what came with more deliveries than that.

    Exit codes: 0 listed, 2 no server, no such queue, or looking would count or delete.

    Examples:
        conquiet dead-letters list orders

        conquiet dead-letters list orders.dead --rabbit --json
    """
    if rabbit:
        where = _delivery_filter("", event, error, source, group)
        with _queue(rabbit_url, name, rabbit_api, count_a_delivery) as queue:
            found = queue.peek(limit=limit or None, where=where)
        rows = [facts_of_delivery(one, show_payload=show_payload) for one in found]
        columns = ["position", "message_id", "source", "reason", "count", "size_bytes"]
    else:
        _refuse_for_streams(source)
        letters = _stream(redis_url, name).oldest(limit=limit or None, where=_filter("", event, error, group))
        rows = [facts_of_message(one, show_payload=show_payload) for one in letters]
        columns = _COLUMNS
    if as_json:
        print_json(rows)
    else:
        shown = [*columns, "payload"] if show_payload else columns
        print_rows(f"Dead letters of {name}", shown, rows, empty="there are no dead letters")


@app.command()
@reported
def show(
    name: Name,
    letter: Annotated[
        str, typer.Argument(help="Its id, as 'list' shows it; with --rabbit a message id or a position.")
    ],
    rabbit: Rabbit = False,
    show_payload: ShowPayload = False,
    redis_url: RedisUrl = "",
    rabbit_url: RabbitUrl = "",
    rabbit_api: Api = "",
    count_a_delivery: CountADelivery = False,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter with its story: error, traceback, attempts, times.

    Exit codes: 0 shown, 2 no server or no such dead letter.

    Examples:
        conquiet dead-letters show orders 1763244000000-0

        conquiet dead-letters show orders.dead 1 --rabbit --show-payload
    """
    if rabbit:
        with _queue(rabbit_url, name, rabbit_api, count_a_delivery) as queue:
            delivery = queue.show(letter)
        if delivery is None:
            raise CommandError(
                f"queue {name} has no dead letter {letter}",
                fix="see them with: conquiet dead-letters list --rabbit",
            )
        print_delivery(facts_of_delivery(delivery, show_payload=show_payload), as_json=as_json)
        return
    found = _stream(redis_url, name).show(letter)
    facts = facts_of_message(found, show_payload=show_payload) | {
        "message_id": found.record.id,
        "entry_id": found.record.entry_id,
        "deliveries": found.record.deliveries,
        "host": found.record.host,
        "consumer": found.record.consumer,
        "error_text": found.record.error,
        "traceback": found.record.traceback,
    }
    if as_json:
        print_json(facts)
        return
    print_facts(facts, apart="traceback")
    if found.record.traceback:
        typer.echo()
        for line in found.record.traceback.rstrip().split("\n"):
            typer.echo(printable(line, limit=WHOLE))


@app.command()
@reported
def groups(
    name: Name,
    rabbit: Rabbit = False,
    redis_url: RedisUrl = "",
    rabbit_url: RabbitUrl = "",
    rabbit_api: Api = "",
    count_a_delivery: CountADelivery = False,
    as_json: AsJson = False,
) -> None:
    """Show what they died of, most frequent first.

    Exit codes: 0 shown, 2 no server or no such queue.

    Examples:
        conquiet dead-letters groups orders
    """
    if rabbit:
        with _queue(rabbit_url, name, rabbit_api, count_a_delivery) as queue:
            rows = queue.groups()
        columns = ["source", "reason", "count"]
    else:
        rows = [
            {"event": one.event, "error": one.error_type, "count": one.count, "example": one.example_id}
            | {"first": time_of(one.first_ms), "last": time_of(one.last_ms)}
            for one in _stream(redis_url, name).groups()
        ]
        columns = ["event", "error", "count", "first", "last", "example"]
    if as_json:
        print_json(rows)
    else:
        print_rows(f"Dead letters of {name}", columns, rows, empty="there are no dead letters")


@app.command()
@reported
def replay(
    name: Name,
    rabbit: Rabbit = False,
    only: Only = "",
    event: Event = "",
    error: ErrorType = "",
    source: Source = "",
    group: Group = "",
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    to: Annotated[str, typer.Option(help="Another consumer group (or queue) than the one they died in.")] = "",
    rate: Annotated[float, typer.Option(min=0, callback=finite, help="At most so many a second; 0 is no limit.")] = 0,
    limit: Limit = 0,
    dry_run: DryRun = False,
    redis_url: RedisUrl = "",
    rabbit_url: RabbitUrl = "",
    rabbit_api: Api = "",
    count_a_delivery: CountADelivery = False,
    as_json: AsJson = False,
) -> None:
    """Bring dead letters back to where they came from, with all their attempts anew.

    A dead letter of a Redis stream comes back for the consumer group it died in, and for no other. If that group is not
    there any more it stays, unless --to names another one.

    Exit codes: 0 done (also if there was nothing to do), 2 no server, no such queue, or no choice made.

    Examples:
        conquiet dead-letters replay orders --error TimeoutError --rate 50 --dry-run

        conquiet dead-letters replay orders --group processor --to processor-2

        conquiet dead-letters replay orders.dead --rabbit --source orders --error rejected
    """
    _require_choice(only, event, error, source, group, everything=everything)
    if rabbit:
        where = _delivery_filter(only, event, error, source, group)
        with _queue(rabbit_url, name, rabbit_api, count_a_delivery) as queue, progress("replayed") as advance:
            if dry_run:
                meant = queue.peek(limit=limit or None, where=where)
                done = sum(bool(to or one.source) for one in meant)
                skipped = len(meant) - done
            else:
                done, skipped = queue.replay(
                    to=to or None,
                    limit=limit or None,
                    per_second=rate or None,
                    where=where,
                    on_progress=lambda _done, _all: advance(1),
                )
        counts = {"replayed": done, "skipped": skipped, "dry_run": dry_run}
    else:
        _refuse_for_streams(source)
        with progress("replayed") as advance:
            seen = 0

            def note(report: "ReplayReport") -> None:
                nonlocal seen
                advance(report.replayed - seen)
                seen = report.replayed

            report = _stream(redis_url, name).replay(
                _filter(only, event, error, group),
                dry_run=dry_run,
                rate_per_s=rate or None,
                limit=limit or None,
                group=to or None,
                on_progress=note,
            )
        counts = dataclasses.asdict(report)
    if as_json:
        print_json(counts)
    else:
        typer.echo(f"{counts['replayed']} {'would be replayed' if dry_run else 'replayed'}")
        for key, what in _NOT_REPLAYED.items():
            if counts.get(key):
                typer.echo(f"{counts[key]} {key}: {what}")


@app.command()
@reported
def discard(
    name: Name,
    rabbit: Rabbit = False,
    only: Only = "",
    event: Event = "",
    error: ErrorType = "",
    source: Source = "",
    group: Group = "",
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    limit: Limit = 0,
    dry_run: DryRun = False,
    redis_url: RedisUrl = "",
    rabbit_url: RabbitUrl = "",
    rabbit_api: Api = "",
    count_a_delivery: CountADelivery = False,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters for good.

    Exit codes: 0 done (also if there was nothing to do), 2 no server, no such queue, or no choice made.

    Examples:
        conquiet dead-letters discard orders --id 1763244000000-0
    """
    _require_choice(only, event, error, source, group, everything=everything)
    if rabbit:
        where = _delivery_filter(only, event, error, source, group)
        with _queue(rabbit_url, name, rabbit_api, count_a_delivery) as queue:
            if dry_run:
                count = len(queue.peek(limit=limit or None, where=where))
            else:
                count = queue.discard(limit=limit or None, where=where)
    else:
        _refuse_for_streams(source)
        where_dead = _filter(only, event, error, group)
        count = _stream(redis_url, name).discard(where_dead, dry_run=dry_run, limit=limit or None)
    if as_json:
        print_json({"discarded": count, "dry_run": dry_run})
    else:
        typer.echo(f"{count} {'would be discarded' if dry_run else 'discarded'}")


def _stream(flag: str, name: str) -> "StreamDeadLetters":
    from conquiet.management.dead_letters import StreamDeadLetters

    with redis_server(flag):  # a server that is not there is said in the usual words
        return StreamDeadLetters(need_url(flag, REDIS), name)


@contextlib.contextmanager
def _queue(flag: str, name: str, api: str, count_a_delivery: bool) -> "Iterator[QueueDeadLetters]":
    from conquiet.management.looking import CountedLookError
    from conquiet.management.rabbit_queues import QueueDeadLetters

    broker(flag)
    api_url = api or os.environ.get(_API, "")
    try:
        yield QueueDeadLetters(need_url(flag, RABBIT), name, api_url=api_url, count_a_delivery=count_a_delivery)
    except CountedLookError as error:
        allow = f"give --count-a-delivery to look all the same, or --rabbit-api (or ${_API}) if the limit is not known"
        fix = _LIFT if error.deadly else "" if count_a_delivery else allow
        raise CommandError(str(error), fix=fix) from error


def _filter(only: str, event: str, error: str, group: str) -> "DeadFilter":
    from conquiet.processor import DeadFilter

    return DeadFilter(id=only or None, event=event or None, error_type=error or None, group=group or None)


def _delivery_filter(only: str, event: str, error: str, source: str, group: str) -> "DeliveryFilter":
    from conquiet.management.rabbit_queues import DeliveryFilter

    if event:
        raise CommandError("messages of RabbitMQ have no event", fix="give --source, --error or --id")
    if group:
        raise CommandError("--group is for Redis streams", fix="give --source: the queue they died in")
    return DeliveryFilter(message_id=only or None, source=source or None, reason=error or None)


def _refuse_for_streams(source: str) -> None:
    if source:
        raise CommandError("--source is for RabbitMQ", fix="give --rabbit too, or --group for a Redis stream")


def _require_choice(*filters: str, everything: bool) -> None:
    if everything == any(filters):
        raise CommandError(
            "say which dead letters are meant",
            fix="give --id, --error, --event, --group or (with --rabbit) --source, or --all alone",
        )
