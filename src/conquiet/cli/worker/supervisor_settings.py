"""The settings of the supervisor, which are the options of ``conquiet worker``."""

from dataclasses import dataclass
from typing import Annotated

import typer

from conquiet.cli.option_types import AppPart, LogLevel, number_option
from conquiet.cli.worker.recycling import RecycleLimits


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """Settings of the supervisor. The help of each option explains it; ``target`` is ``module:object``."""

    processes: Annotated[int, typer.Option("--processes", "-p", min=1, max=1_024, help="Worker processes.")] = 1
    concurrency: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="Most concurrent handlers in each process; 0: as in the code.")
    ] = 0
    grace_s: Annotated[float, number_option("Seconds a process may take to end after SIGTERM.")] = 28.0
    only: Annotated[
        list[AppPart] | None,
        typer.Option("--only", help="Run only this part of an App. Repeatable."),
    ] = None
    reload: Annotated[bool, typer.Option("--reload", help="Restart when a .py file here changes.")] = False
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Prometheus metrics of all processes; 0: none.")
    ] = 0
    health_port: Annotated[int, typer.Option(min=0, max=65_535, help="/livez and /readyz; 0: none.")] = 0
    host: Annotated[str, typer.Option(help="Address of these ports; 0.0.0.0 for Kubernetes probes.")] = "127.0.0.1"
    wait_s: Annotated[float, number_option("Seconds to wait for servers at the start.")] = 30.0
    max_messages: Annotated[
        int, typer.Option(min=0, max=2**52, help="Messages after which a process is replaced; 0: never.")
    ] = 0
    max_rss_mb: Annotated[
        int, typer.Option(min=0, max=2**40, help="MiB of memory above which a process is replaced; 0: never.")
    ] = 0
    max_age_s: Annotated[float, number_option("Seconds after which a process is replaced; 0: never.")] = 0
    log_level: LogLevel = "info"
    target: str = ""

    @property
    def limits(self) -> RecycleLimits:
        """Limits at which a process is replaced."""
        return RecycleLimits(max_messages=self.max_messages, max_rss_mb=self.max_rss_mb, max_age_s=self.max_age_s)
