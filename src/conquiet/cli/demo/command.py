"""The options of ``conquiet demo``."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Annotated

import typer

from conquiet.cli.errors import FAILED
from conquiet.core.extras import require_extra


def demo(
    orders: Annotated[int, typer.Option(min=1, max=1_000_000, help="Orders to enqueue.")] = 10_000,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 4,
    redis_url: Annotated[str, typer.Option(help="Use this Redis instead of a private one.")] = "",
    db_url: Annotated[str, typer.Option(help="Use this database instead of an SQLite file.")] = "",
    mysql: Annotated[
        bool, typer.Option("--mysql", help="Start a private MySQL or MariaDB (nothing is fetched).")
    ] = False,
    chaos: Annotated[bool, typer.Option("--chaos", help="Kill every worker, twice, and the private Redis.")] = False,
    dashboard: Annotated[
        bool,
        typer.Option("--dashboard", help="Serve the dashboard during the demo; on a terminal until you press Enter."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
) -> None:
    """Process 10,000 orders with 4 workers, kill one half-way, lose nothing.

    Starts a private Redis or Valkey and an SQLite file, both removed afterwards. URLs from the environment or
    conquiet.toml are not used: the demo uses a real server only if a flag names it.

    Exit codes: 0 nothing lost and nothing done twice, 1 otherwise, 2 the demo could not start, 130 Ctrl-C.

    Examples:
        conquiet demo

        conquiet demo --chaos --orders 50000 --dashboard

        conquiet demo --redis-url redis://localhost --db-url mysql+pymysql://root@localhost/test
    """
    require_extra("redis", "redis", "hiredis")
    from conquiet.cli.demo.dashboard import serve_dashboard
    from conquiet.cli.demo.environment import open_environment
    from conquiet.cli.demo.orchestrator import Orchestrator
    from conquiet.cli.demo.plan import DemoPlan
    from conquiet.cli.demo.view import DemoView, LiveView
    from conquiet.cli.output import make_console

    plan = DemoPlan(orders, workers, chaos)
    console = make_console(quiet=as_json)
    view = LiveView(console) if console.is_terminal else DemoView(console)
    with (
        interruptible(),
        view,
        open_environment(redis_url=redis_url or None, db_url=db_url or None, mysql=mysql, durable=chaos) as environment,
        serve_dashboard(environment.redis_url) if dashboard else nullcontext() as address,
    ):
        if address is not None:
            view.log(f"dashboard: {address}")
        summary = Orchestrator(plan, environment, view).run()
        view.show_summary(summary)
        if address is not None and console.is_terminal and sys.stdin.isatty():
            typer.prompt(f"the dashboard is still at {address}; press Enter to end", default="", show_default=False)
    if as_json:
        typer.echo(json.dumps(summary.as_json()))
    if not summary.balanced:
        raise typer.Exit(FAILED)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into an exception; later signals do not interrupt the clean-up.

    SIGINT is a KeyboardInterrupt; the others end the process with 128 and their number, as without a handler.
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
