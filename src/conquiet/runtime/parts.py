"""The names, settings and small parts that all parts of one engine share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from conquiet.redis_transport.topology import Topology
from conquiet.runtime.engine_events import EventDispatcher
from conquiet.runtime.executor import Executor
from conquiet.runtime.fetch_budget import FetchBudget
from conquiet.runtime.lease_table import LeaseTable
from conquiet.runtime.metrics import Pace, StreamStats
from conquiet.runtime.outage import OutagePause
from conquiet.runtime.settings import RuntimeSettings


@dataclass(slots=True, kw_only=True)
class EngineParts:
    """The arguments of an engine, and the parts that need nothing else.

    Attributes:
        streams: Keys of the streams.
        group: The consumer group.
        consumer_id: Name of the engine in it.
        concurrency: Maximum number of messages, or batches, executed concurrently.
        settings: Times and limits.
        topology: The servers of the streams.
        executor: Runs each message and returns its settlement.
        events: Receives the events of messages.
        on_error: Called with every error and, if there is one, its message.
        stop: Ends the engine with an error.
        by_node: The streams, in groups that one command can read together.
        table: Messages under lease.
        stats: Counts by stream.
        pace: Average handling time.
        budget: Limits the number of messages in flight.
        outage: Limits fetching during an outage.
    """

    streams: tuple[str, ...]
    group: str
    consumer_id: str
    concurrency: int
    settings: RuntimeSettings
    topology: Topology
    executor: Executor
    events: EventDispatcher
    on_error: Callable[..., None]
    stop: Callable[[BaseException], None]
    by_node: Sequence[tuple[str, ...]] = field(init=False)
    table: LeaseTable = field(init=False)
    stats: dict[str, StreamStats] = field(init=False)
    pace: Pace = field(init=False)
    budget: FetchBudget = field(init=False)
    outage: OutagePause = field(init=False)

    def __post_init__(self) -> None:
        self.by_node = self.topology.split_by_node(self.streams)
        self.table = LeaseTable(self.streams)
        self.stats = {stream: StreamStats(stream) for stream in self.streams}
        self.pace = Pace()
        together, prefetch = self.concurrency, self.settings.prefetch
        if self.executor.batching is not None:
            # Each worker takes a whole batch, and the next batch is gathered while it runs.
            largest = self.executor.batching.largest
            together, prefetch = together * largest, max(prefetch, largest) if prefetch else 0
        self.budget = FetchBudget(together, prefetch, len(self.by_node))
        self.outage = OutagePause(self.group, self.settings.outage, on_change=self.budget.notify)
