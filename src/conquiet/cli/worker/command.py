"""The words of ``conquiet worker``."""

from typing import Annotated

import typer

from conquiet.cli.failures import reported
from conquiet.cli.numbers import finite

_LEVELS = ("debug", "info", "warning", "error")


@reported
def worker(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:OBJECT", help="What to run; the current folder comes first.")
    ],
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, max=1_024, help="Worker processes.")] = 1,
    concurrency: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="Most handlers at once in each process; 0: as built.")
    ] = 0,
    grace: Annotated[
        float, typer.Option(min=0, callback=finite, help="Seconds a process may take to end after SIGTERM.")
    ] = 28.0,
    reload: Annotated[bool, typer.Option("--reload", help="Start again when a .py file here changes.")] = False,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Prometheus metrics of all processes; 0: none.")
    ] = 0,
    health_port: Annotated[int, typer.Option(min=0, max=65_535, help="/livez and /readyz; 0: none.")] = 0,
    host: Annotated[str, typer.Option(help="Where these ports listen; 0.0.0.0 for Kubernetes probes.")] = "127.0.0.1",
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(_LEVELS)}.")] = "info",
) -> None:
    """Run a runtime.Consumer, Processor, Scheduler, RabbitConsumer or OutboxRelay, or a list of them.

    MODULE:OBJECT is one of these, a list of them, or a function that returns one. Processes that die are
    started again, with growing pauses; five deaths within a minute end the whole. SIGTERM or Ctrl-C drains:
    nothing new is read, what runs is finished and acknowledged. A second signal forces the end; what is
    unfinished stays pending for others.

    Exit codes: 0 drained, 1 crash loop or a process that had to be killed, 2 it could not start.

    Examples:
        conquiet worker shop.workers:orders --processes 4 --health-port 8080 --metrics-port 9090

        conquiet worker shop.workers:make_orders --concurrency 32

        conquiet worker shop.workers:orders --reload
    """
    from conquiet.cli.worker.supervisor import Supervisor, SupervisorSettings

    if log_level.lower() not in _LEVELS:
        raise typer.BadParameter(f"must be one of {', '.join(_LEVELS)}", param_hint="--log-level")
    settings = SupervisorSettings(
        target=target,
        processes=processes,
        concurrency=concurrency or None,
        grace_s=grace,
        reload=reload,
        host=host,
        metrics_port=metrics_port or None,
        health_port=health_port or None,
        log_level=log_level,
    )
    raise typer.Exit(Supervisor(settings).run())
