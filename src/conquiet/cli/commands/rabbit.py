"""``conquiet rabbit run`` and ``conquiet publish``."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.command_group import CommandGroup
from conquiet.cli.connections import check_broker
from conquiet.cli.errors import CommandError
from conquiet.cli.line_batcher import LineBatcher
from conquiet.cli.option_types import LogLevel
from conquiet.cli.output import print_result, progress
from conquiet.cli.payload_input import read_payloads, report_partial_failure
from conquiet.cli.settings import RABBIT, AsJson, RabbitUrl, require_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from conquiet.rabbit import KeyStore

_BATCH = 500

app = CommandGroup(help="Consume a RabbitMQ queue.", no_args_is_help=True)


@app.callback()
def rabbit() -> None:
    """Consume a RabbitMQ queue."""


@app.command()
def run(
    url: Annotated[str, typer.Argument(metavar="URL|-", help=f"The broker; - uses ${RABBIT} or conquiet.toml.")],
    queue: Annotated[str, typer.Argument(help="An existing queue.")],
    syncer: Annotated[
        str, typer.Argument(metavar="MODULE:SYNCER", help="Called with each message; returns True or False.")
    ],
    concurrency: Annotated[int, typer.Option(min=1, max=65_535, help="Most concurrent messages.")] = 1,
    prefetch: Annotated[int, typer.Option(min=0, max=65_535, help="Most unsettled messages; 0: 2 x concurrency.")] = 0,
    max_retries: Annotated[
        int, typer.Option(min=0, help="Skip messages dead-lettered more often than this; 0: no limit.")
    ] = 0,
    proca: Annotated[bool, typer.Option("--proca", help="Accept only the schemas of proca; implied by keys.")] = False,
    keys: Annotated[str, typer.Option(metavar="FILE", help="Key file for personal data, mode 0600.")] = "",
    secret_volume: Annotated[
        bool, typer.Option("--secret-volume", help="The key file is in a Secret volume of Kubernetes.")
    ] = False,
    keys_env: Annotated[
        str, typer.Option(metavar="NAME", help="Environment variable with the content of a key file.")
    ] = "",
    poison_guard: Annotated[
        bool, typer.Option("--poison-guard", help="Dead-letter a message that fails fatally twice; one per process.")
    ] = False,
    dead_letter: Annotated[
        bool, typer.Option("--dead-letter", help="The queue has a dead-letter exchange; by default detected.")
    ] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Without a dead-letter exchange discard instead of moving to QUEUE.dead.")
    ] = False,
    tag: Annotated[str, typer.Option(help="Second half of the consumer tag.")] = "",
    log_level: LogLevel = "info",
) -> None:
    """Call a syncer with each message of a queue until SIGTERM or Ctrl-C.

    Any JSON object is accepted. A message that fails twice goes to the queue's dead-letter exchange; without a known
    one it is moved to the durable queue QUEUE.dead.

    Exit codes: 0 after a graceful stop; 1 after a fatal error, a connection that was lost too often, or when handlers
    were abandoned after the grace period; 2 nothing was consumed: usage error, no broker, no such queue.

    Examples:
        conquiet rabbit run amqp://localhost orders shop.sync:handle --concurrency 8

        CONQUIET_RABBIT_URL=amqp://user:password@host conquiet rabbit run - orders shop.sync:handle
    """
    from conquiet.cli.logs import set_up_logging
    from conquiet.cli.worker.worker_loader import load_object
    from conquiet.rabbit import RabbitConsumer, SchemaRegistry, run_process

    handler = load_object(syncer)
    if not callable(handler):
        raise CommandError(
            f"{syncer} is a {type(handler).__name__}, not a function",
            fix="it must take a message and return True or False",
        )
    given: dict[str, Any] = {
        "prefetch": prefetch,
        "max_retries": max_retries,
        "tag": tag,
        "poison_guard": poison_guard,
        "dead_letter": dead_letter,
        "without_dead_letters": "discard" if discard else "",
        "schemas": SchemaRegistry() if proca or keys or keys_env else None,
        "key_store": _key_store(keys, keys_env, secret_volume=secret_volume) if keys or keys_env else None,
    }
    settings = {name: value for name, value in given.items() if value or name in {"schemas", "key_store"}}
    options: dict[str, Any] = {"concurrency": concurrency, **settings}
    address = require_url("" if url == "-" else url, RABBIT)
    RabbitConsumer(address, queue, handler, **options)  # an invalid setting is reported in one sentence
    check_broker(address)
    set_up_logging(log_level)
    raise typer.Exit(run_process(address, queue, handler, **options))


def _key_store(path: str, name: str, *, secret_volume: bool) -> "KeyStore":
    from conquiet.rabbit import FileKeyStore, MemoryKeyStore

    if path and name:
        raise CommandError("keys come from one place", fix="give --keys or --keys-env, not both")
    return FileKeyStore(path, secret_volume=secret_volume) if path else MemoryKeyStore.from_env(name)


def publish(
    queue: Annotated[str, typer.Argument(help="Routing key; with the default exchange the name of the queue.")],
    payload: Annotated[str, typer.Argument(metavar="JSON|@FILE|-", help="A JSON object, @file of JSON lines, or -.")],
    exchange: Annotated[str, typer.Option(help="Exchange; by default the default exchange.")] = "",
    content_type: Annotated[
        str, typer.Option(help="AMQP content type; the Node original does not accept application/json.")
    ] = "",
    rabbit_url: RabbitUrl = "",
    as_json: AsJson = False,
) -> None:
    """Publish JSON objects to RabbitMQ, confirmed by the broker. A missing queue is an error.

    An invalid line ends the command: all lines before it are published and confirmed, and the error names the line.

    Exit codes: 0 all confirmed, 1 a message was refused or returned, 2 no broker.

    Examples:
        conquiet publish orders '{"order": 1}'

        conquiet publish orders @orders.jsonl
    """
    import asyncio

    from conquiet.rabbit import Outgoing, Publisher

    check_broker(rabbit_url)
    counted = 0

    async def work(show_completed: Any) -> int:
        def note(confirmed: int) -> None:
            nonlocal counted
            show_completed(confirmed)
            counted = confirmed

        async def messages() -> "AsyncIterator[Outgoing]":
            async for batch in LineBatcher(read_payloads(payload), size=_BATCH).batches_async():
                for one in batch:
                    yield Outgoing(queue, one, exchange=exchange, content_type=content_type or None)

        async with Publisher(require_url(rabbit_url, RABBIT)) as publisher:
            return await publisher.publish_many(messages(), on_progress=note)

    with progress("published") as show_completed, report_partial_failure("confirmed", lambda: counted):
        published = asyncio.run(work(show_completed))
    result = {"queue": queue, "published": published}
    print_result(result, f"{published} published to {queue}", as_json=as_json)
