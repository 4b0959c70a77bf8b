"""The options of ``conquiet worker``."""

from typing import Annotated

import typer

from conquiet.cli.option_types import AppPart, LogFormat, LogLevel, number_option


def worker(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:OBJECT", help="The worker or App; modules of the current folder come first."),
    ],
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, max=1_024, help="Worker processes.")] = 1,
    concurrency: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="Most concurrent handlers in each process; 0: as in the code.")
    ] = 0,
    grace: Annotated[float, number_option("Seconds a process may take to end after SIGTERM.")] = 28.0,
    only: Annotated[
        list[AppPart] | None,
        typer.Option("--only", help="Run only this part of an App. Repeatable."),
    ] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Restart when a .py file here changes.")] = False,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Prometheus metrics of all processes; 0: none.")
    ] = 0,
    health_port: Annotated[int, typer.Option(min=0, max=65_535, help="/livez and /readyz; 0: none.")] = 0,
    host: Annotated[str, typer.Option(help="Address of these ports; 0.0.0.0 for Kubernetes probes.")] = "127.0.0.1",
    wait_s: Annotated[float, number_option("Seconds to wait for servers at the start.")] = 30.0,
    max_messages: Annotated[
        int, typer.Option(min=0, max=2**52, help="Messages after which a process is replaced; 0: never.")
    ] = 0,
    max_rss: Annotated[
        int,
        typer.Option("--max-rss", min=0, max=2**40, help="MiB of memory above which a process is replaced; 0: never."),
    ] = 0,
    max_age: Annotated[float, number_option("Seconds after which a process is replaced; 0: never.")] = 0,
    log_level: LogLevel = "info",
    log_format: LogFormat = "",  # noqa: ARG001 - its callback does everything
) -> None:
    """Run an App, or a worker: Processor, Scheduler, RabbitConsumer, OutboxRelay, QueueWorker or runtime.Consumer.

    MODULE:OBJECT is one of these, a list of them, or a function that returns them. Processes that die are restarted,
    with growing pauses; five crashes within a minute end the command. SIGTERM or Ctrl-C drains: workers read nothing
    new, finish running handlers and acknowledge their messages. A second signal forces the end; unfinished messages
    stay pending for other workers. If a server cannot be reached at the start, the command waits for it.

    With --max-messages, --max-rss or --max-age a process is replaced by a fresh one when it reaches the limit (up to a
    tenth earlier): it drains first, one process at a time, and no message loses an attempt.

    Exit codes: 0 drained, 1 crash loop, handlers that were abandoned or a process that had to be killed, 2 it could not
    start, or a server could not be reached.

    Examples:
        conquiet worker shop:app

        conquiet worker shop:app --only handlers --concurrency 32

        conquiet worker shop.workers:orders --processes 4 --health-port 8080 --metrics-port 9090

        conquiet worker shop.workers:make_orders --concurrency 32

        conquiet worker shop.workers:orders --reload

        conquiet worker shop:app --log-format json

        conquiet worker shop:app --processes 4 --max-messages 100000 --max-rss 512
    """
    from conquiet.cli.worker.recycling import RecycleLimits
    from conquiet.cli.worker.supervisor import ProcessSupervisor
    from conquiet.cli.worker.supervisor_settings import SupervisorSettings

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
        only=tuple(part.value for part in only or ()),
        wait_s=wait_s,
        limits=RecycleLimits(max_messages=max_messages or None, max_rss_mb=max_rss or None, max_age_s=max_age or None),
    )
    raise typer.Exit(ProcessSupervisor(settings).run())
