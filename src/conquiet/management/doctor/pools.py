"""Check connection pools against the number of processes and their concurrency. Pure."""

from dataclasses import dataclass

from conquiet.core.validation import require_positive
from conquiet.management.doctor.findings import Finding, Severity


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Database connections of a deployment.

    Attributes:
        pool: Most connections of one process: ``pool_size`` + ``max_overflow`` of all its engines.
        processes: Processes on each host.
        hosts: Number of hosts.
        concurrency: Concurrent handlers in a process; for batch handlers, concurrent batches. 0 if unknown.
    """

    pool: int
    processes: int = 1
    hosts: int = 1
    concurrency: int = 0

    def __post_init__(self) -> None:
        for name in ("pool", "processes", "hosts"):
            require_positive(name, getattr(self, name))

    @property
    def connections(self) -> int:
        """Most connections of all processes. Each process has one more for its relay."""
        return (self.pool + 1) * self.processes * self.hosts


def examine_pools(plan: PoolPlan) -> list[Finding]:
    """Return the findings about the plan. The check of the server compares it with ``max_connections``."""
    if plan.concurrency <= plan.pool:
        return []
    return [
        Finding(
            "database.pool",
            Severity.WARNING,
            f"a pool lends at most {plan.pool} connections, and {plan.concurrency} handlers run concurrently",
            "handlers wait for a connection while their messages are leased, and fail when the pool's timeout is over",
            f"call create_engine with pool_size={plan.concurrency}, or lower the concurrency to {plan.pool}",
        )
    ]
