"""Read the workers of streams: host, process, version, health and liveness.

A worker stores these facts when it renews its liveness key (``redis_transport.worker_reports``). The facts of a killed
worker remain, so that its host and process id can be shown after its liveness key has expired.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from conquiet.management.liveness import consumer_state, server_counts_attempts
from conquiet.management.models import ConsumerState
from conquiet.management.redis_admin import RedisAdmin, display_name, utf8_name
from conquiet.redis_transport.liveness import has_ended, liveness_key, registry_key
from conquiet.redis_transport.worker_reports import workers_key

if TYPE_CHECKING:
    from conquiet.redis_transport.commands import Word

_PER_CALL: Final = 50
_MOST_CONSUMERS: Final = 500
_FORGOTTEN_MS: Final = 3_600_000

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
