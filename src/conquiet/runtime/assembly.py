"""Construct the parts of an engine. Each part depends only on earlier parts. Nothing is sent.

ShardConnections ◀── Acknowledger ◀── Leases ◀── Settler ◀── Runner ◀── WorkerPool ◀── Fetcher ◀── Shard
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conquiet.core.worker_pool import WorkerPool
from conquiet.metrics.outages import OutageWatch
from conquiet.redis_transport.async_connection import AsyncRedisConnection
from conquiet.redis_transport.topology import Topology
from conquiet.runtime.acknowledger import Acknowledger
from conquiet.runtime.batch import BatchPool, MessagePool
from conquiet.runtime.batch_runner import BatchRunner
from conquiet.runtime.capacity import CapacitySignal
from conquiet.runtime.engine_events import EventDispatcher
from conquiet.runtime.executor import Executor
from conquiet.runtime.fetch_budget import FetchBudget
from conquiet.runtime.health import EngineHealth
from conquiet.runtime.heartbeat import Heartbeat, HeartbeatCallbacks
from conquiet.runtime.lease_table import LeaseTable
from conquiet.runtime.leases import Leases
from conquiet.runtime.metrics import StreamStats
from conquiet.runtime.name_reservation import NameReservation
from conquiet.runtime.outage import OutagePause
from conquiet.runtime.outcomes import OutcomeReporter
from conquiet.runtime.pace import Pace
from conquiet.runtime.parts import EngineParts
from conquiet.runtime.reconnect import Reconnect
from conquiet.runtime.reporting import WorkerReporter
from conquiet.runtime.runner import Runner
from conquiet.runtime.settings import RuntimeSettings
from conquiet.runtime.settler import Settler
from conquiet.runtime.shard import Shard
from conquiet.runtime.shard_connections import ShardConnections


@dataclass(frozen=True, slots=True)
class Reports:
    """Callbacks from the parts to their engine.

    Attributes:
        events: Receives the events of messages.
        error: Called with an error and, if there is one, its message.
        stop: Ends the engine with an error.
        health: Returns the health of the engine. Called in the heartbeat thread, too.
        heartbeat: Called in the heartbeat thread.
    """

    events: EventDispatcher
    error: Callable[..., None]
    stop: Callable[[BaseException], None]
    health: Callable[[], EngineHealth]
    heartbeat: HeartbeatCallbacks


@dataclass(frozen=True, slots=True)
class AssembledEngine:
    """The parts that the engine itself uses."""

    table: LeaseTable
    stats: dict[str, StreamStats]
    pace: Pace
    outage: OutagePause
    leases: Leases
    settler: Settler
    pool: MessagePool
    shards: Sequence[Shard]
    heartbeat: Heartbeat


def assemble(
    *,
    streams: tuple[str, ...],
    group: str,
    consumer_id: str,
    concurrency: int,
    settings: RuntimeSettings,
    topology: Topology,
    executor: Executor,
    reports: Reports,
) -> AssembledEngine:
    """Return the parts of one engine."""
    table = LeaseTable(streams)
    stats = {stream: StreamStats(stream) for stream in streams}
    by_node = topology.split_by_node(streams)
    report_due = threading.Event()
    connections = [ShardConnections.create(topology, those, settings, report_due) for those in by_node]
    acknowledgers = [_acknowledger(one.ack, group, settings, table, reports) for one in connections]
    leases = Leases(
        {stream: one for those, one in zip(by_node, acknowledgers, strict=True) for stream in those},
        group=group,
        consumer_id=consumer_id,
        claim_idle_s=settings.claim_idle_s,
        table=table,
        on_error=reports.error,
    )
    capacity = CapacitySignal()
    outage = OutagePause(group, settings.outage, on_change=capacity.notify)
    pace = Pace()
    settler = Settler(
        executor,
        leases=leases,
        acknowledge=acknowledgers[0].add if len(acknowledgers) == 1 else leases.acknowledge_soon,
        table=table,
        outage=outage,
        stop=reports.stop,
    )
    outcomes = OutcomeReporter(reports.events, stats=stats, pace=pace, settings=settings)
    runner = Runner(
        executor,
        settler=settler,
        leases=leases,
        dispatcher=reports.events,
        outcomes=outcomes,
        settings=settings,
        outage=outage,
    )
    pool: MessagePool
    together, prefetch = concurrency, settings.prefetch
    if executor.batching is None:
        pool = WorkerPool(concurrency, runner, on_free=capacity.notify)
    else:
        batch_runner = BatchRunner(
            executor.batching,
            runner=runner,
            settler=settler,
            leases=leases,
            dispatcher=reports.events,
            outcomes=outcomes,
            outage=outage,
        )
        cap, on_free = settings.max_deliveries, capacity.notify
        pool = BatchPool(concurrency, batch_runner, batching=executor.batching, cap=cap, on_free=on_free)
        # Each worker takes a whole batch, and the next batch is gathered while it runs.
        largest = executor.batching.largest
        together, prefetch = concurrency * largest, max(prefetch, largest) if prefetch else 0
    reporter = None
    if settings.report_activity:
        reporter = WorkerReporter(stats, concurrency=concurrency, health=reports.health)
    name = NameReservation(
        group,
        consumer_id,
        reporter=reporter,
        connections={stream: one.identities for one in connections for stream in one.streams},
        changed=report_due,
    )
    parts = EngineParts(
        group=group,
        consumer_id=consumer_id,
        settings=settings,
        table=table,
        stats=stats,
        pool=pool,
        budget=FetchBudget(together, prefetch, len(by_node)),
        capacity=capacity,
        outage=outage,
        pace=pace,
        name=name,
        on_error=reports.error,
        handles_malformed=executor.handles_malformed,
    )
    shards = [
        Shard(one.streams, connection=one.read, acknowledger=acknowledger, may_move=topology.may_move, parts=parts)
        for one, acknowledger in zip(connections, acknowledgers, strict=True)
    ]
    heartbeat = Heartbeat(
        topology,
        table,
        group=group,
        consumer_id=consumer_id,
        settings=settings,
        name=name,
        callbacks=reports.heartbeat,
    )
    return AssembledEngine(table, stats, pace, outage, leases, settler, pool, shards, heartbeat)


def _acknowledger(
    connection: AsyncRedisConnection, group: str, settings: RuntimeSettings, table: LeaseTable, reports: Reports
) -> Acknowledger:
    outage = OutageWatch("Redis", "nothing is read or acknowledged")
    reconnect = Reconnect(settings.reconnect, settings.max_reconnects, connection.name, outage)
    return Acknowledger(connection, group=group, table=table, reconnect=reconnect, on_error=reports.error)
