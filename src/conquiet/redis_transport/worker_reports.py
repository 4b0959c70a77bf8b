"""Reports that a worker writes when it renews its liveness key: facts about the process, and counts. Pure.

    {stream}:workers:<group>                 hash: consumer -> JSON about the process (host, pid, version, health)
    {stream}:deploys                         sorted set: version -> when a worker of it first started
    {stream}:history:<group>:m:<hour>        hash: "<minute>:<counter>" -> number, kept for 9 hours
    {stream}:history:<group>:q:<day>         hash: "<quarter of an hour>:<counter>" -> number, kept for 15 days

The script call that renews the key writes all of it, so a worker sends no further command. It writes changed counters
only. The numbers are for people: after a lost reply its numbers are counted twice.

A worker also reports its connections (``ConnectionId``), so that others can see that they were closed: the kernel
closes the connections of a killed process, and the server notices immediately.

See docs/decisions/0052.
"""

from typing import Final, NamedTuple

from conquiet.redis_transport.hash_tags import slot_prefix

QUARTERS_PER_DAY: Final = 96

BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Upper bounds of the buckets ``h0`` to ``h13`` (handling), ``w0`` to ``w13`` (wait); ``h14``, ``w14`` are longer."""

_COUNT: Final = """
local function record(base, at, pairs_from)
  if #ARGV < pairs_from then return end
  local minute = math.floor(at / 60)
  local hour, quarter = math.floor(minute / 60), math.floor(minute / 15)
  local fine, coarse = base .. ':m:' .. hour, base .. ':q:' .. math.floor(quarter / 96)
  for i = pairs_from, #ARGV, 2 do
    redis.pcall('HINCRBY', fine, (minute % 60) .. ':' .. ARGV[i], ARGV[i + 1])
    redis.pcall('HINCRBY', coarse, (quarter % 96) .. ':' .. ARGV[i], ARGV[i + 1])
  end
  redis.pcall('EXPIRE', fine, 32400)
  redis.pcall('EXPIRE', coarse, 1296000)
end
"""

RENEW_NAME: Final = (
    _COUNT
    + """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.pcall('SADD', KEYS[2], ARGV[3])
local at = tonumber(redis.call('TIME')[1])
redis.pcall('HSET', KEYS[3], ARGV[3], ARGV[4])
redis.pcall('EXPIRE', KEYS[3], 86400)
if ARGV[5] ~= '' then
  local newest = redis.pcall('ZREVRANGE', KEYS[4], 0, 0)
  if newest[1] ~= ARGV[5] then
    redis.pcall('ZADD', KEYS[4], at, ARGV[5])
    redis.pcall('ZREMRANGEBYRANK', KEYS[4], 0, -51)
  end
end
record(KEYS[5], at, 6)
return 1
"""
)
"""Renew a consumer name as ``RESERVE_NAME`` does, and leave a report. KEYS: liveness key, registered names, workers,
deploys, base of the history; ARGV: token, milliseconds, name, facts as JSON, version to mark or empty, then pairs of a
counter and a number.

The report is best effort: keys that this user may not write are left out. The keys of the history depend on the
server's clock and are not in KEYS; they are in the same slot.
"""

RECORD_LAST: Final = (
    _COUNT
    + """
redis.pcall('HDEL', KEYS[1], ARGV[1])
record(KEYS[2], tonumber(redis.call('TIME')[1]), 2)
return 1
"""
)
"""Record the last counts of a worker that stops, and remove its facts. KEYS: workers, base of the history; ARGV: name,
then pairs of a counter and a number."""


class ConnectionId(NamedTuple):
    """One connection of a server's process.

    The client id alone does not identify it: after a restart, or on another server, another client has that number.

    Attributes:
        server: ``run_id`` of the server's process.
        client: Its CLIENT ID there. A running server gives no number twice.
    """

    server: str
    client: int


def workers_key(stream: str, group: str) -> str:
    """Return the hash of the facts that the workers of a group report."""
    return f"{slot_prefix(stream)}:workers:{group}"


def deploys_key(stream: str) -> str:
    """Return the sorted set of the worker versions that have read a stream."""
    return f"{slot_prefix(stream)}:deploys"


def history_base(stream: str, group: str) -> str:
    """Return the prefix of the keys of a group's history."""
    return f"{slot_prefix(stream)}:history:{group}"


def minutes_key(base: str, hour: int) -> str:
    """Return the hash of the minutes of one hour since the epoch."""
    return f"{base}:m:{hour}"


def quarters_key(base: str, day: int) -> str:
    """Return the hash of the quarters of an hour of one day since the epoch."""
    return f"{base}:q:{day}"
