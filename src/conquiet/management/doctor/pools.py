"""Whether connection pools fit together with the processes that have them and the concurrency that uses them. Pure."""

from dataclasses import dataclass

from conquiet.core.validation import require_positive
from conquiet.management.doctor.findings import Finding, Severity


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """How a deployment opens database connections.

    Attributes:
        pool: Connections that one process may open: ``pool_size`` + ``max_overflow`` of all its engines.
        processes: Processes on each host.
        hosts: Hosts.
        concurrency: Handlers at once in a process; of batch handlers, batches at once. 0 if not known.
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
        """Connections that all processes may open together; each has one more for its relay."""
        return (self.pool + 1) * self.processes * self.hosts


def examine_pools(plan: PoolPlan) -> list[Finding]:
    """Return what is wrong with the plan by itself; ``max_connections`` is compared by the check of the server."""
    if plan.concurrency <= plan.pool:
        return []
    return [
        Finding(
            "database.pool",
            Severity.WARNING,
            f"a pool lends at most {plan.pool} connections at once, and {plan.concurrency} handlers run at once",
            "handlers wait for a connection while their messages are leased, and fail when the pool's timeout is over",
            f"call create_engine with pool_size={plan.concurrency}, or lower the concurrency to {plan.pool}",
        )
    ]
