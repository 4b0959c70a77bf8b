"""``conquiet inspect``: streams, groups, lag, pending, consumers, delayed, dead letters."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.connections import open_redis
from conquiet.cli.option_types import number_option
from conquiet.cli.output import make_console, print_json, print_rows
from conquiet.cli.settings import AsJson, RedisUrl

if TYPE_CHECKING:
    from conquiet.management import RedisAdmin, StreamReport

_COLUMNS = [
    "stream", "length", "group", "lag", "pending", "oldest_s", "alive", "unknown", "dead", "delayed", "dead_letters",
    "paused",
]  # fmt: skip


def inspect(
    stream: Annotated[str, typer.Argument(help="One stream in detail; by default all streams.")] = "",
    pattern: Annotated[str, typer.Option(help="Only streams with a key that matches, e.g. 'shop:*'.")] = "*",
    limit: Annotated[int, typer.Option(min=1, help="Most streams.")] = 100,
    watch_s: Annotated[float, number_option("Seconds between repetitions, until Ctrl-C.")] = 0,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Show streams, groups, lag, pending and consumers. Changes nothing.

    A consumer is live if it has read within a minute, idle if only its liveness key proves that it is alive, else
    dead. Before Redis 7.2 the server does not count reads that returned nothing, and such a consumer is unknown. The
    partitions of a stream are shown as one stream.

    Exit codes: 0 shown, 1 the server refused a command, 2 no server or no such stream.

    Examples:
        conquiet inspect

        conquiet inspect orders --watch-s 2

        conquiet inspect --pattern 'shop:*' --json
    """
    with open_redis(redis_url) as server:
        while True:
            _show(server, stream, pattern, limit, as_json=as_json)
            if not watch_s:
                return
            time.sleep(watch_s)
            if sys.stdout.isatty() and not as_json:
                make_console().clear()


def _show(server: "RedisAdmin", stream: str, pattern: str, limit: int, *, as_json: bool) -> None:
    from conquiet.management import describe_stream, list_streams

    if stream:
        facts = describe_stream(server, stream)
        if as_json:
            print_json(facts.as_dict())
        else:
            _show_one(facts)
        return
    found = list_streams(server, pattern=pattern, limit=limit)
    if as_json:
        print_json(found.as_dict())
        return
    rows = [row for facts in found.streams for row in _rows(facts)]
    print_rows("Streams", _COLUMNS, rows, empty="there are no streams")
    if not found.complete:
        typer.echo("there is more: narrow it with --pattern, or raise --limit", err=True)


def _rows(facts: "StreamReport") -> list[dict[str, Any]]:
    common = {
        "stream": facts.key,
        "length": facts.length,
        "delayed": facts.delayed,
        "dead_letters": facts.dead_letters,
        "paused": ",".join(facts.paused or ()) or None,
    }
    if not facts.groups:
        return [common]
    return [
        common
        | {
            "group": group.name,
            "lag": group.lag,
            "pending": group.pending,
            "oldest_s": group.oldest_age_s,
            "alive": sum(consumer.alive for consumer in group.consumers),
            "unknown": sum(consumer.state == "unknown" for consumer in group.consumers),
            "dead": sum(consumer.state == "dead" for consumer in group.consumers),
        }
        for group in facts.groups
    ]


def _show_one(facts: "StreamReport") -> None:
    partitions = f", {facts.partitions} partitions" if facts.partitions > 1 else ""
    print_rows(f"Stream {facts.key}{partitions}", _COLUMNS, _rows(facts), empty="")
    consumers = [
        {
            "group": group.name,
            "consumer": consumer.name,
            "state": consumer.state,
            "pending": consumer.pending,
            "idle_s": consumer.idle_s,
        }
        for group in facts.groups
        for consumer in group.consumers
    ]
    typer.echo()
    print_rows(
        "Consumers", ["group", "consumer", "state", "pending", "idle_s"], consumers, empty="no consumer has read it yet"
    )
