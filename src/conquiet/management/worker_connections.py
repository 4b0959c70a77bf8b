"""Find workers whose connections to Redis have been closed: a killed process is seen so within a second, on any host.

The kernel closes the sockets of a process that ends, however it ends, and Redis notices at once; its liveness key
lives on for up to 15 seconds. A worker reports the ids of its connections with that key. One ``CLIENT LIST ID`` asks
for those ids alone, so its cost depends on the number of workers and not on that of the server's clients.

A connection that is missing once proves nothing: a worker that has just connected again reports its new ids a moment
later. The caller asks twice. A host that loses power, or its network, closes nothing: its liveness key decides.

See docs/decisions/0081.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from conquiet.errors import QueueError
from conquiet.management.models import ConsumerState
from conquiet.management.redis_admin import RedisAdmin
from conquiet.management.workers import StreamWorker
from conquiet.redis_transport.connection_id import run_id
from conquiet.redis_transport.errors import ResponseError
from conquiet.redis_transport.replies import text

MOST_CLIENTS: Final = 1_000
"""Connections that are asked for at once. A reply has about 350 bytes for each."""

_ID: Final = re.compile(rb"^id=(\d+) ", re.MULTILINE)


class WorkerConnections(NamedTuple):
    """The connections of one worker, as it reported them: run id of the server, and CLIENT IDs there."""

    server: str
    clients: tuple[int, ...]


def connections_of(worker: StreamWorker) -> WorkerConnections | None:
    """Return the connections of a worker that counts as alive; None if it is dead, or reports none."""
    facts = worker.facts
    if facts is None or not facts.server or not facts.clients or worker.state is ConsumerState.DEAD:
        return None
    return WorkerConnections(facts.server, facts.clients)


def find_closed(server: RedisAdmin, workers: Iterable[StreamWorker]) -> set[WorkerConnections] | None:
    """Return the connections of workers of which the server has none any more; None if this user may not ask.

    What was reported to another process of the server, before a restart or a failover, is left out.
    """
    wanted = {one for one in map(connections_of, workers) if one is not None}
    closed: set[WorkerConnections] = set()
    if not wanted:
        return closed
    try:
        for address in server.masters():
            here = run_id(text(server.call_each(address, "INFO", "server")))
            asked = _bounded([one for one in wanted if one.server == here])
            ids = sorted({client for one in asked for client in one.clients})
            if ids:
                found = _ID.findall(server.call_each(address, "CLIENT", "LIST", "ID", *ids))
                open_now = set(map(int, found))
                closed |= {one for one in asked if open_now.isdisjoint(one.clients)}
    except QueueError as error:
        if isinstance(error.__cause__, ResponseError):
            return None
        raise
    return closed


def _bounded(wanted: Sequence[WorkerConnections]) -> list[WorkerConnections]:
    """Return as many as may be asked for at once: the newest connections, of the workers that started last."""
    left, kept = MOST_CLIENTS, []
    for one in sorted(wanted, key=lambda one: one.clients, reverse=True):
        left -= len(one.clients)
        if left < 0:
            break
        kept.append(one)
    return kept


def mark_closed(workers: Iterable[StreamWorker], closed: set[WorkerConnections]) -> tuple[StreamWorker, ...]:
    """Return the workers, those with closed connections as dead. Pure."""
    return tuple(
        replace(one, state=ConsumerState.DEAD, disconnected=True) if connections_of(one) in closed else one
        for one in workers
    )
