"""Read the workers of streams: host, process, version, health and liveness.

A worker stores these facts when it renews its liveness key (``redis_transport.worker_reports``). The facts of a killed
worker remain, so that its host and process id can be shown after its liveness key has expired.

A worker without an open connection to Redis is dead: a killed process on any host is detected within a second. The
kernel closes the sockets of a process that ends for any reason, and Redis notices immediately. The liveness key of the
worker exists for up to 15 seconds longer. A worker reports the ids of its connections with that key. One
``CLIENT LIST ID`` queries only these ids, so its cost depends on the number of workers, not on the number of clients.

One missing connection proves nothing: a worker that has reconnected reports its new ids a moment later. The caller
therefore queries twice. A host that loses power or its network closes no socket: there the liveness key decides.

See docs/decisions/0052.
"""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from conquiet.errors import QueueError
from conquiet.management.liveness import consumer_state, server_counts_attempts
from conquiet.management.models import ConsumerState
from conquiet.management.redis_admin import RedisAdmin, display_name, utf8_name
from conquiet.redis_transport.errors import ResponseError
from conquiet.redis_transport.liveness import has_ended, liveness_key, registry_key
from conquiet.redis_transport.replies import info_fields
from conquiet.redis_transport.worker_reports import workers_key

if TYPE_CHECKING:
    from conquiet.redis_transport.commands import Word

_PER_CALL: Final = 50
_MOST_CONSUMERS: Final = 500
_FORGOTTEN_MS: Final = 3_600_000
_MOST_CLIENTS: Final = 1_000
"""Most connections queried by one command. The reply has about 350 bytes for each."""

_CLIENT_ID: Final = re.compile(rb"^id=(\d+) ", re.MULTILINE)

_WORKERS: Final = """
local function field(row, name)
  for i = 1, #row, 2 do if row[i] == name then return row[i + 1] end end
  return 0
end
local found = {}
for i = 1, #KEYS, 4 do
  local rows = redis.pcall('XINFO', 'CONSUMERS', KEYS[i], ARGV[(i + 3) / 4 + 1])
  local one, known, most = {}, {}, tonumber(ARGV[1])
  local function add(name, pending, idle)
    one[#one + 1] = {
      name, pending, idle, redis.pcall('PTTL', KEYS[i + 3] .. name), redis.pcall('SISMEMBER', KEYS[i + 1], name),
      redis.pcall('HGET', KEYS[i + 2], name), redis.pcall('GET', KEYS[i + 3] .. name)
    }
  end
  if not rows.err then
    for at = 1, math.min(#rows, most) do
      local name = field(rows[at], 'name')
      known[name] = true
      add(name, field(rows[at], 'pending'), field(rows[at], 'idle'))
    end
    local reported = redis.pcall('HKEYS', KEYS[i + 2])
    for at = 1, reported.err and 0 or #reported do
      if not known[reported[at]] and #one < most then add(reported[at], 0, -1) end
    end
  end
  found[#found + 1] = one
end
return found
"""
"""List consumers with liveness and facts. KEYS: for each group its stream, registered names, workers, and the prefix of
its liveness keys; ARGV: most consumers of each, then the groups.

Before Redis 7.2 a worker becomes a consumer of the group with its first entry. Until then only its report is known, and
its idle time is returned as -1."""


class WorkerFacts(msgspec.Struct, frozen=True):
    """Facts that a worker reported when it renewed its liveness key.

    ``server`` and ``clients`` are its connections: the run id of the server and CLIENT IDs.
    """

    host: str = ""
    pid: int = 0
    version: str = ""
    conquiet: str = ""
    started_ms: int = 0
    concurrency: int = 0
    active: int = 0
    in_flight: int = 0
    ready: bool = True
    reason: str = ""
    at_ms: int = 0
    server: str = ""
    clients: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamWorker:
    """One consumer of one group.

    Attributes:
        pending: Entries delivered to it and not acknowledged, on which it holds a lease.
        idle_s: Seconds since its last read, as counted by the server; None for a worker without an entry so far.
        lease_s: Seconds until its liveness key expires; None without a key.
        ended: Its process ran on this machine and has ended. Overrides the liveness key.
        disconnected: Redis has closed its connections, so its process was killed. Overrides the liveness key.
        facts: None for a consumer that reports none: a ``QueueConsumer``, or a program of another library.
    """

    stream: str
    group: str
    name: str
    state: ConsumerState
    pending: int
    idle_s: float | None
    lease_s: float | None
    facts: WorkerFacts | None
    ended: bool = False
    disconnected: bool = False


def read_workers(server: RedisAdmin, groups: Iterable[tuple[bytes, bytes]]) -> list[StreamWorker]:
    """Return the consumers of these groups, given as pairs of stream and group."""
    wanted = [those for those in groups if all(utf8_name(name) is not None for name in those)]
    attempts = server_counts_attempts(server) if wanted else False
    found: list[StreamWorker] = []
    step = 1 if server.is_cluster else _PER_CALL  # a script may use keys of one slot only
    for start in range(0, len(wanted), step):
        chunk = wanted[start : start + step]
        keys: list[Word] = []
        for raw_stream, raw_group in chunk:
            stream, group = raw_stream.decode(), raw_group.decode()
            beside = registry_key(stream, group), workers_key(stream, group), liveness_key(stream, group, "")
            keys += (raw_stream, *beside)
        names = [group for _, group in chunk]
        reply = server.call(
            "EVAL", _WORKERS, len(keys), *keys, _MOST_CONSUMERS, *names, stream=display_name(chunk[0][0])
        )
        for (stream_key, group_key), rows in zip(chunk, reply, strict=True):
            read = (_worker(stream_key, group_key, row, counts=attempts) for row in rows)
            found += [one for one in read if not _is_forgotten(one)]
    return found


def _is_forgotten(worker: StreamWorker) -> bool:
    """Return whether a worker without any entry died long ago. No other rule removes it from the list."""
    if worker.idle_s is not None or worker.state is not ConsumerState.DEAD:
        return False
    return worker.facts is None or time.time() * 1000 - worker.facts.at_ms > _FORGOTTEN_MS


def _worker(stream: bytes, group: bytes, row: Sequence[Any], *, counts: bool) -> StreamWorker:
    name, pending, idle_ms, left_ms, registered, facts, holder = row
    known = isinstance(left_ms, int)
    ended = isinstance(holder, bytes) and has_ended(display_name(holder))
    return StreamWorker(
        stream=display_name(stream),
        group=display_name(group),
        name=display_name(name),
        state=ConsumerState.DEAD
        if ended
        else consumer_state(
            idle_ms / 1000,
            has_key=left_ms > 0 if known else None,
            counts_attempts=counts,
            registered=registered == 1,
        ),
        pending=pending,
        idle_s=None if idle_ms < 0 else idle_ms / 1000,
        lease_s=left_ms / 1000 if known and left_ms > 0 else None,
        facts=_facts(facts),
        ended=ended,
    )


def _facts(raw: Any) -> WorkerFacts | None:
    if not isinstance(raw, bytes):
        return None
    try:
        return msgspec.json.decode(raw, type=WorkerFacts)
    except (msgspec.DecodeError, UnicodeDecodeError):  # written by another version, or by another program
        return None


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
                found = _CLIENT_ID.findall(server.call_each(address, "CLIENT", "LIST", "ID", *ids))
                open_now = set(map(int, found))
                closed |= {one for one in queried if open_now.isdisjoint(one.clients)}
    except QueueError as error:
        if isinstance(error.__cause__, ResponseError):
            return None
        raise
    return closed


def _bounded(wanted: Sequence[WorkerConnections]) -> list[WorkerConnections]:
    """Return as many as one command may query: the newest connections, of the workers that started last."""
    left, kept = _MOST_CLIENTS, []
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
