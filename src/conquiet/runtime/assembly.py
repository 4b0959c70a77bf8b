"""Construct the parts of an engine. Each part depends only on earlier parts. Nothing is sent.

EngineParts ◀── ShardConnections ◀── Acknowledger ◀── Leases ◀── Settler ◀── Runner ◀── WorkerPool ◀── Shard
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conquiet.core.worker_pool import WorkerPool
from conquiet.runtime.acknowledger import Acknowledger
from conquiet.runtime.batch import BatchPool, MessagePool
from conquiet.runtime.batch_runner import BatchRunner
from conquiet.runtime.health import EngineHealth
from conquiet.runtime.heartbeat import Heartbeat, HeartbeatCallbacks
from conquiet.runtime.leases import Leases
from conquiet.runtime.name_reservation import NameReservation
from conquiet.runtime.parts import EngineParts
from conquiet.runtime.runner import Runner
from conquiet.runtime.settler import Settler
from conquiet.runtime.shard import Shard, ShardConnections


@dataclass(frozen=True, slots=True)
class AssembledEngine:
    """The parts that the engine itself uses."""

    leases: Leases
    settler: Settler
    pool: MessagePool
    shards: Sequence[Shard]
    heartbeat: Heartbeat


def assemble(
    parts: EngineParts, *, health: Callable[[], EngineHealth], callbacks: HeartbeatCallbacks
) -> AssembledEngine:
    """Return the parts of one engine.

    Args:
        parts: The parts that all others share.
        health: Returns the health of the engine. Called in the heartbeat thread.
        callbacks: Called in the heartbeat thread.
    """
    report_due = threading.Event()
    connections = [ShardConnections.create(streams, parts, report_due) for streams in parts.by_node]
    linked = [(one, Acknowledger(one.ack, parts)) for one in connections]
    leases = Leases({stream: acknowledger for one, acknowledger in linked for stream in one.streams}, parts)
    settler = Settler(parts, leases)
    pool = _pool(parts, settler, leases)
    identities = {stream: one.identities for one in connections for stream in one.streams}
    name = NameReservation(parts, connections=identities, changed=report_due, health=health)
    shards = [Shard(one, acknowledger, pool=pool, name=name, parts=parts) for one, acknowledger in linked]
    return AssembledEngine(leases, settler, pool, shards, Heartbeat(parts, name, callbacks))


def _pool(parts: EngineParts, settler: Settler, leases: Leases) -> MessagePool:
    batching, on_free = parts.executor.batching, parts.budget.notify
    if batching is None:
        return WorkerPool(parts.concurrency, Runner(parts, settler, leases), on_free=on_free)
    runner, cap = BatchRunner(parts, settler, leases), parts.settings.max_deliveries
    return BatchPool(parts.concurrency, runner, runner.run_batch, batching=batching, cap=cap, on_free=on_free)
