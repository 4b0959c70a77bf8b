"""The parts of one engine that its shards share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from conquiet.runtime.batch import MessagePool
from conquiet.runtime.capacity import CapacitySignal
from conquiet.runtime.fetch_budget import FetchBudget
from conquiet.runtime.lease_table import LeaseTable
from conquiet.runtime.metrics import StreamStats
from conquiet.runtime.name_reservation import NameReservation
from conquiet.runtime.outage import OutagePause
from conquiet.runtime.pace import Pace
from conquiet.runtime.settings import RuntimeSettings


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Parts that the fetchers, readers and acknowledgers of one engine share.

    Attributes:
        group: The consumer group.
        consumer_id: Name of the engine in it.
        settings: Times and limits.
        table: Messages under lease.
        stats: Counts by stream.
        pool: Runs fetched messages.
        budget: Limits the number of messages in flight.
        capacity: Notifies fetchers that they may fetch.
        outage: Limits fetching during an outage.
        pace: Average handling time.
        name: Reserves the consumer name.
        on_error: Called with every error.
        handles_malformed: Malformed entries are delivered as well as messages.
    """

    group: str
    consumer_id: str
    settings: RuntimeSettings
    table: LeaseTable
    stats: Mapping[str, StreamStats]
    pool: MessagePool
    budget: FetchBudget
    capacity: CapacitySignal
    outage: OutagePause
    pace: Pace
    name: NameReservation
    on_error: Callable[[BaseException], None]
    handles_malformed: bool
