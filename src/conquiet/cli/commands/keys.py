"""``conquiet keys``: show the ordering keys of a stream, and release stuck ones."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.connections import call_redis
from conquiet.cli.output import print_json, print_rows
from conquiet.cli.settings import AsJson, RedisUrl

if TYPE_CHECKING:
    from conquiet.processor.key_order import OrderReport
    from conquiet.redis_transport.client import AsyncClient


def keys(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most keys.")] = 20,
    release_stuck: Annotated[
        bool, typer.Option("--release-stuck", help="Release stuck keys: the next message of each key runs.")
    ] = False,
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Show ordering keys: the current message of each, how many wait behind it, and stuck keys.

    A key is stuck if another program removed its current message (XDEL, XTRIM, XACK, ZREM).

    Exit codes: 0 shown, or released; 1 keys are stuck; 2 no server or no such stream.

    Examples:
        conquiet keys payments

        conquiet keys payments --release-stuck
    """
    from conquiet.processor.key_order import PartitionedKeyOrder

    async def work(client: "AsyncClient") -> "tuple[OrderReport, list[str]]":
        order = PartitionedKeyOrder(client, stream)
        found = await (order.release_stuck() if release_stuck else order.stuck())
        return await order.report(limit=limit), found

    report, stuck = call_redis(redis_url, work, check=lambda server: server.require_stream(stream))
    if as_json:
        print_json(asdict(report) | {"released" if release_stuck else "stuck": stuck})
    else:
        typer.echo(f"{report.holders} keys have a message at work, {report.waiting} messages wait behind them")
        rows = [asdict(line) for line in report.longest]
        print_rows(f"Keys of {stream}", ("key", "waiting"), rows, empty="no message waits behind another")
        if stuck and release_stuck:
            typer.echo(f"released: {', '.join(stuck)}")
        elif stuck:
            typer.echo(f"stuck: {', '.join(stuck)}. Their messages were removed; --release-stuck releases these keys")
    if stuck and not release_stuck:
        raise typer.Exit(1)
