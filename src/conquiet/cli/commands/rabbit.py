"""``conquiet rabbit run`` and ``conquiet publish``."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.connecting import broker
from conquiet.cli.failures import CommandError, reported
from conquiet.cli.feeding import Feed
from conquiet.cli.output import print_json
from conquiet.cli.payloads import read_payloads, stopped_at
from conquiet.cli.progress import progress
from conquiet.cli.settings import RABBIT, AsJson, RabbitUrl, need_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_BATCH = 500
_LEVELS = ("debug", "info", "warning", "error")

app = typer.Typer(help="Consume a RabbitMQ queue.", no_args_is_help=True)


@app.callback()
def rabbit() -> None:
    """Consume a RabbitMQ queue."""


@app.command()
@reported
def run(
    url: Annotated[str, typer.Argument(metavar="URL|-", help=f"The broker; - takes ${RABBIT} or conquiet.toml.")],
    queue: Annotated[str, typer.Argument(help="A queue that exists.")],
    syncer: Annotated[str, typer.Argument(metavar="MODULE:SYNCER", help="Gets each message; returns True or False.")],
    concurrency: Annotated[int, typer.Option(min=1, max=65_535, help="Messages handled at once.")] = 1,
    prefetch: Annotated[
        int, typer.Option(min=0, max=65_535, help="Unsettled messages the broker gives; 0: 2 x concurrency.")
    ] = 0,
    max_retries: Annotated[int, typer.Option(min=0, help="Skip what died more often than this; 0: no limit.")] = 0,
    keys: Annotated[str, typer.Option(metavar="FILE", help="Key file for personal data, mode 0600.")] = "",
    tag: Annotated[str, typer.Option(help="Second half of the consumer tag.")] = "",
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(_LEVELS)}.")] = "info",
) -> None:
    """Take messages from a queue to a syncer until SIGTERM or Ctrl-C.

    Exit codes: 0 after a graceful end, 1 after anything fatal (also a broker that cannot be reached), 2 wrong words.

    Examples:
        conquiet rabbit run amqp://localhost orders shop.sync:handle --concurrency 8

        CONQUIET_RABBIT_URL=amqp://user:password@host conquiet rabbit run - orders shop.sync:handle
    """
    from conquiet.cli.worker.logs import set_up_logging
    from conquiet.cli.worker.targets import load_object
    from conquiet.rabbit import FileKeyStore, RabbitConsumer, RabbitOptions, run_process

    if log_level.lower() not in _LEVELS:
        raise typer.BadParameter(f"must be one of {', '.join(_LEVELS)}", param_hint="--log-level")
    handler = load_object(syncer)
    if not callable(handler):
        raise CommandError(
            f"{syncer} is a {type(handler).__name__}, not a function",
            fix="it must take a message and return True or False",
        )
    options = RabbitOptions(concurrency=concurrency)
    if prefetch:
        options["prefetch"] = prefetch
    if max_retries:
        options["max_retries"] = max_retries
    if keys:
        options["key_store"] = FileKeyStore(keys)
    if tag:
        options["tag"] = tag
    address = need_url("" if url == "-" else url, RABBIT)
    RabbitConsumer(address, queue, handler, **options)  # wrong words end here with 2, and not as something fatal with 1
    set_up_logging(log_level)
    raise typer.Exit(run_process(address, queue, handler, **options))


@reported
def publish(
    queue: Annotated[str, typer.Argument(help="Routing key; with the default exchange the queue's name.")],
    payload: Annotated[str, typer.Argument(metavar="JSON|@FILE|-", help="A JSON object, @file of JSON lines, or -.")],
    exchange: Annotated[str, typer.Option(help="Another exchange than the default one.")] = "",
    rabbit_url: RabbitUrl = "",
    as_json: AsJson = False,
) -> None:
    """Publish JSON objects to RabbitMQ, confirmed by the broker. A queue that is missing is an error.

    A bad line ends it: everything before that line is published and confirmed, and the line is named.

    Exit codes: 0 all confirmed, 1 one was refused or returned, 2 no broker.

    Examples:
        conquiet publish orders '{"order": 1}'

        conquiet publish orders @orders.jsonl
    """
    import asyncio

    from conquiet.errors import PublishError
    from conquiet.rabbit import Outgoing, Publisher

    broker(rabbit_url)
    counted = 0

    async def work(advance: Any) -> int:
        nonlocal counted

        def note(confirmed: int) -> None:
            nonlocal counted
            advance(confirmed - counted)
            counted = confirmed

        async def messages() -> "AsyncIterator[Outgoing]":
            async for batch in Feed(read_payloads(payload), size=_BATCH).batches_async():
                for one in batch:
                    yield Outgoing(queue, one, exchange=exchange)

        async with Publisher(need_url(rabbit_url, RABBIT)) as publisher:
            return await publisher.publish_many(messages(), progress=note)

    with progress("published") as advance:
        try:
            published = asyncio.run(work(advance))
        except CommandError as error:
            raise stopped_at(error, f"{counted} before it are confirmed") from error.__cause__
        except (PublishError, KeyboardInterrupt, SystemExit):
            typer.echo(f"conquiet: at least {counted} are confirmed", err=True)
            raise
    if as_json:
        print_json({"queue": queue, "published": published})
    else:
        typer.echo(f"{published} published to {queue}")
