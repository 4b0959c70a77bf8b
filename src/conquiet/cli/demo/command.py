"""The words of ``conquiet demo``."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from conquiet.cli.failures import FAILED, reported


@reported
def demo(
    orders: Annotated[int, typer.Option(min=1, max=1_000_000, help="Orders to enqueue.")] = 10_000,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 4,
    redis_url: Annotated[str, typer.Option(help="Use this Redis instead of a private one.")] = "",
    db_url: Annotated[str, typer.Option(help="Use this database instead of an SQLite file.")] = "",
    mysql: Annotated[
        bool, typer.Option("--mysql", help="Start a private MySQL or MariaDB (nothing is fetched).")
    ] = False,
    chaos: Annotated[bool, typer.Option("--chaos", help="Kill every worker, twice, and the private Redis.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ledger as JSON, and nothing else.")] = False,
) -> None:
    """Process 10,000 orders with 4 workers, kill one half-way, lose nothing.

    Starts a private Valkey and an SQLite file, both gone afterwards. URLs from the environment or
    conquiet.toml are not used: a demo should meet a real server only if you name it here.

    Exit codes: 0 the ledger balances, 1 it does not, 2 the demo could not start, 130 Ctrl-C.

    Examples:
        conquiet demo

        conquiet demo --chaos --orders 50000

        conquiet demo --redis-url redis://localhost --db-url mysql+pymysql://root@localhost/test
    """
    from conquiet.cli.demo.conductor import Conductor
    from conquiet.cli.demo.plan import DemoPlan
    from conquiet.cli.demo.stage import open_stage
    from conquiet.cli.demo.view import LiveView, PlainView, View
    from conquiet.cli.output import make_console

    plan = DemoPlan(orders, workers, chaos)
    console = make_console(quiet=as_json)
    view: View = LiveView(console) if console.is_terminal else PlainView(console)
    with (
        interruptible(),
        view,
        open_stage(redis_url=redis_url or None, db_url=db_url or None, mysql=mysql, durable=chaos) as stage,
    ):
        ledger = Conductor(plan, stage, view).run()
        view.close_with(ledger)
    if as_json:
        typer.echo(json.dumps(ledger.as_json()))
    if not ledger.balanced:
        raise typer.Exit(FAILED)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into one exception; later ones do not disturb the clean-up.

    SIGINT is a KeyboardInterrupt; the others end the process with 128 and their number, as if nobody had caught them.
    """
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {signum: signal.getsignal(signum) for signum in wanted}

    def interrupt(received: int, _frame: FrameType | None) -> None:
        for signum in wanted:
            signal.signal(signum, signal.SIG_IGN)
        if received == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + received)

    for signum in wanted:
        signal.signal(signum, interrupt)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
