"""Find workers without an open connection to Redis. A killed process on any host is detected within a second.

The kernel closes the sockets of a process that ends for any reason, and Redis notices immediately. The liveness key of
the worker exists for up to 15 seconds longer. A worker reports the ids of its connections with that key. One
``CLIENT LIST ID`` queries only these ids, so its cost depends on the number of workers, not on the number of clients.

One missing connection proves nothing: a worker that has reconnected reports its new ids a moment later. The caller
therefore queries twice. A host that loses power or its network closes no socket: there the liveness key decides.

See docs/decisions/0052.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from conquiet.errors import QueueError
from conquiet.management.models import ConsumerState
from conquiet.management.redis_admin import RedisAdmin
from conquiet.management.workers import StreamWorker
from conquiet.redis_transport.errors import ResponseError
from conquiet.redis_transport.replies import info_fields

MOST_CLIENTS: Final = 1_000
"""Most connections queried by one command. The reply has about 350 bytes for each."""

_ID: Final = re.compile(rb"^id=(\d+) ", re.MULTILINE)


class WorkerConnections(NamedTuple):
    """The connections that one worker reported: run id of the server and CLIENT IDs."""

    server: str
    clients: tuple[int, ...]


def connections_of(worker: StreamWorker) -> WorkerConnections | None:
    """Return the connections of a live worker; None if the worker is dead or reports none."""
    facts = worker.facts
    if facts is None or not facts.server or not facts.clients or worker.state is ConsumerState.DEAD:
        return None
    return WorkerConnections(facts.server, facts.clients)


def find_closed(server: RedisAdmin, workers: Iterable[StreamWorker]) -> set[WorkerConnections] | None:
    """Return the reported connections that are all closed; None if this user may not query them.

    Connections to an earlier process of the server, before a restart or a failover, are left out.
    """
    wanted = {one for one in map(connections_of, workers) if one is not None}
    closed: set[WorkerConnections] = set()
    if not wanted:
        return closed
    try:
        for address in server.masters():
            here = info_fields(server.call_each(address, "INFO", "server")).get("run_id", "")
            queried = _bounded([one for one in wanted if one.server == here])
            ids = sorted({client for one in queried for client in one.clients})
            if ids:
                found = _ID.findall(server.call_each(address, "CLIENT", "LIST", "ID", *ids))
                open_now = set(map(int, found))
                closed |= {one for one in queried if open_now.isdisjoint(one.clients)}
    except QueueError as error:
        if isinstance(error.__cause__, ResponseError):
            return None
        raise
    return closed


def _bounded(wanted: Sequence[WorkerConnections]) -> list[WorkerConnections]:
    """Return as many as one command may query: the newest connections, of the workers that started last."""
    left, kept = MOST_CLIENTS, []
    for one in sorted(wanted, key=lambda one: one.clients, reverse=True):
        left -= len(one.clients)
        if left < 0:
            break
        kept.append(one)
    return kept


def mark_closed(workers: Iterable[StreamWorker], closed: set[WorkerConnections]) -> tuple[StreamWorker, ...]:
    """Return the workers, marked as dead if their connections are closed. Pure."""
    return tuple(
        replace(one, state=ConsumerState.DEAD, disconnected=True) if connections_of(one) in closed else one
        for one in workers
    )
