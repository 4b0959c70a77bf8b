"""The settings of ``conquiet worker``."""

from dataclasses import dataclass, field

from conquiet.cli.worker.recycling import RecycleLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings:
    """Settings of the supervisor.

    Attributes:
        target: ``module:object``.
        processes: Number of processes.
        concurrency: Maximum concurrent handlers in each process; None keeps the setting of the workers.
        grace_s: How long a process may take to end before it is killed.
        reload: Restart when a Python file below the current folder changes.
        host: Where the ports listen.
        metrics_port: None serves no metrics.
        health_port: None serves no probes.
        log_level: Of the processes.
        wait_s: How long to wait for a server that cannot be reached at the start.
        only: Parts of an App to run; empty runs all.
        limits: Limits at which a process is replaced.
    """

    target: str
    processes: int = 1
    concurrency: int | None = None
    grace_s: float = 28.0
    reload: bool = False
    host: str = "127.0.0.1"
    metrics_port: int | None = None
    health_port: int | None = None
    log_level: str = "info"
    wait_s: float = 30.0
    only: tuple[str, ...] = ()
    limits: RecycleLimits = field(default_factory=RecycleLimits)
