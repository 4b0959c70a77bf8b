"""``conquiet emit``, ``pause`` and ``resume``: commands for streams of a Processor."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.connections import call_redis, open_redis
from conquiet.cli.errors import CommandError
from conquiet.cli.line_batcher import LineBatcher
from conquiet.cli.option_types import number_option
from conquiet.cli.output import print_json, progress
from conquiet.cli.payload_input import read_payloads, report_partial_failure
from conquiet.cli.settings import REDIS, AsJson, RedisUrl, require_url

if TYPE_CHECKING:
    from conquiet.management import RedisAdmin

_BATCH = 500


def emit(
    event: Annotated[str, typer.Argument(help="The event; its handler receives the data.")],
    data: Annotated[
        str, typer.Argument(metavar="JSON|@FILE|-", help="A JSON object, @file of JSON lines, or -.")
    ] = "{}",
    stream: Annotated[str, typer.Option("--stream", "-s", help="The stream to emit to. Required.")] = "",
    message_id: Annotated[
        str, typer.Option("--id", help="Message id. A second message with the same id is not emitted.")
    ] = "",
    key: Annotated[str, typer.Option(help="Messages with the same key run one at a time, in order.")] = "",
    delay_s: Annotated[float, number_option("Seconds until the message is due.")] = 0,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Emit messages for a Processor, in batches of up to 500; a batch that is not full is sent after 0.2 s.

    An invalid line ends the command: all lines before it are emitted, and the error names the line.

    Exit codes: 0 emitted (or a duplicate of that id), 1 a line was refused, 2 no server, wrong key, or no JSON object.

    Examples:
        conquiet emit mail.send '{"to": 17}' --stream mails --delay-s 60

        conquiet emit order.created @orders.jsonl --stream orders --key customer-7
    """
    from conquiet.management.partitions import count_partitions
    from conquiet.processor import Emitted, Emitter, NewMessage, PartitionedEmitter

    if not stream:
        raise CommandError("no stream was given", fix="give --stream NAME")
    if message_id and (data == "-" or data.startswith("@")):
        raise CommandError("one --id cannot be the identity of many messages", fix="leave it out, or give one object")

    emitted: list[Emitted] = []
    is_partitioned = False

    def check(server: "RedisAdmin") -> None:
        nonlocal is_partitioned
        server.is_stream(stream)
        is_partitioned = count_partitions(server, stream) > 1

    async def work(client: Any) -> None:
        emitter = PartitionedEmitter(client, stream) if is_partitioned else Emitter(client, stream)
        async for batch in LineBatcher(read_payloads(data), size=_BATCH).batches_async():
            messages = [
                NewMessage(event, one, id=message_id or None, delay_s=delay_s or None, key=key or None) for one in batch
            ]
            emitted.extend(await emitter.emit_many(messages))
            show_completed(len(emitted))

    with progress("emitted") as show_completed, report_partial_failure("emitted", lambda: len(emitted)):
        call_redis(redis_url, work, check=check)
    if as_json:
        print_json([one._asdict() for one in emitted])
    elif len(emitted) == 1:
        typer.echo(f"{emitted[0].id}{' (a duplicate: nothing was emitted)' if emitted[0].duplicate else ''}")
    else:
        typer.echo(f"{len(emitted)} emitted to {stream}")


def pause(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    event: Annotated[str, typer.Option(help="Only this event of the stream.")] = "",
    redis_url: RedisUrl = "",
) -> None:
    """Pause a stream, or one event of it, on all hosts. The pause survives restarts; running handlers finish.

    Processors notice it within a second, or within 8 s if a wake-up is lost. A bare runtime.Consumer or QueueConsumer
    ignores pauses.

    Exit codes: 0 paused (or it was paused already), 2 no server or no such stream.

    Examples:
        conquiet pause mails

        conquiet pause orders --event order.refund
    """
    _change(stream, event, redis_url, "pause", "paused", "was paused already")


def resume(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    event: Annotated[str, typer.Option(help="Only this event of the stream.")] = "",
    redis_url: RedisUrl = "",
) -> None:
    """Resume a paused stream or event.

    Exit codes: 0 resumed (or it was not paused), 2 no server or no such stream.

    Examples:
        conquiet resume mails
    """
    _change(stream, event, redis_url, "resume", "continues", "was not paused")


def _change(stream: str, event: str, redis_url: str, verb: str, done: str, nothing: str) -> None:
    from conquiet.management.async_redis import with_redis
    from conquiet.management.pauses import pause_stream, resume_stream

    change = pause_stream if verb == "pause" else resume_stream
    with open_redis(redis_url) as server:
        if verb == "pause":
            server.require_stream(stream)
        changed = with_redis(require_url(redis_url, REDIS), lambda client: change(client, stream, event or None))
        if not changed:
            # A pause of a deleted stream can be ended; a mistyped name is reported.
            server.require_stream(stream)
    what = f"event {event} of {stream}" if event else stream
    typer.echo(f"{what} {done if changed else nothing}")
