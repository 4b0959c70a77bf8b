"""``conquiet worker``."""

from dataclasses import replace
from typing import Annotated

import typer

from conquiet.cli.option_types import LogFormat
from conquiet.cli.worker.supervisor_settings import SupervisorSettings


def worker(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:OBJECT", help="The worker or App; modules of the current folder come first."),
    ],
    *,
    options: SupervisorSettings,
    log_format: LogFormat = "",  # noqa: ARG001 - its callback does everything
) -> None:
    """Run an App, or a worker: Processor, Scheduler, RabbitConsumer, OutboxRelay, QueueWorker or runtime.Consumer.

    MODULE:OBJECT is one of these, a list of them, or a function that returns them. Processes that die are restarted,
    with growing pauses; five crashes within a minute end the command. SIGTERM or Ctrl-C drains: workers read nothing
    new, finish running handlers and acknowledge their messages. A second signal forces the end; unfinished messages
    stay pending for other workers. If a server cannot be reached at the start, the command waits for it.

    With --max-messages, --max-rss-mb or --max-age-s a process is replaced by a fresh one when it reaches the limit (up
    to a tenth earlier): it drains first, one process at a time, and no message loses an attempt.

    Exit codes: 0 drained, 1 crash loop, handlers that were abandoned or a process that had to be killed, 2 it could not
    start, or a server could not be reached.

    Examples:
        conquiet worker shop:app

        conquiet worker shop:app --only handlers --concurrency 32

        conquiet worker shop.workers:orders --processes 4 --health-port 8080 --metrics-port 9090

        conquiet worker shop.workers:make_orders --concurrency 32

        conquiet worker shop.workers:orders --reload

        conquiet worker shop:app --log-format json

        conquiet worker shop:app --processes 4 --max-messages 100000 --max-rss-mb 512
    """
    from conquiet.cli.worker.supervisor import ProcessSupervisor

    raise typer.Exit(ProcessSupervisor(replace(options, target=target)).run())
