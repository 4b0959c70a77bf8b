"""Sample how far behind the groups of a stream are, for Prometheus. Runs in the thread of ``housekeeping``.

    every 10 s, for each stream      one script: take or renew the lease, and read ──▶ gauges

One host at a time samples a stream: a lease in Redis decides. A host that loses the lease sets its gauges to NaN, which
every comparison and aggregation of PromQL ignores, so that no stale number stays behind. A server with other groups on
the stream reports them too, 20 at most: names of groups are label values.

The script costs the server next to nothing: XLEN, XINFO GROUPS, TIME, ZCARD, XLEN; then XPENDING and an XRANGE of one
entry for each group. It changes the lease alone.
"""

import math
import random
import time
from typing import Any, Final

from conquiet.core.redaction import printable
from conquiet.metrics.registry import (
    STREAM_DEAD_LETTERS,
    STREAM_DELAYED,
    STREAM_LAG,
    STREAM_LENGTH,
    STREAM_OLDEST_WAITING_SECONDS,
    STREAM_PENDING,
    STREAM_SAMPLES_TOTAL,
)
from conquiet.metrics.safety import count, set_gauge
from conquiet.redis_transport.client import SyncClient
from conquiet.redis_transport.hash_tags import slot_prefix
from conquiet.redis_transport.ids import milliseconds_of
from conquiet.redis_transport.replies import as_mapping, group_lag, server_ms, text
from conquiet.redis_transport.scripts import Script

INTERVAL_S: Final = 10.0
_GROUPS: Final = 20
_STREAM_GAUGES: Final = (STREAM_LENGTH, STREAM_DELAYED, STREAM_DEAD_LETTERS)
_GROUP_GAUGES: Final = (STREAM_LAG, STREAM_PENDING, STREAM_OLDEST_WAITING_SECONDS)
_SAMPLE_SOURCE: Final = """
local function number(reply)
  return type(reply) == 'number' and reply or 0
end
local holder = redis.call('GET', KEYS[4])
if holder and holder ~= ARGV[2] then return false end
redis.call('SET', KEYS[4], ARGV[2], 'PX', ARGV[3])
local rows = {}
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
for at = 1, math.min(groups.err and 0 or #groups, tonumber(ARGV[1])) do
  local row, name, after = groups[at], nil, nil
  for field = 1, #row, 2 do
    if row[field] == 'name' then name = row[field + 1] end
    if row[field] == 'last-delivered-id' then after = row[field + 1] end
  end
  local waiting = redis.call('XRANGE', KEYS[1], '(' .. after, '+', 'COUNT', 1)
  rows[at] = {row, redis.call('XPENDING', KEYS[1], name)[1], waiting[1] and waiting[1][1] or ''}
end
return {number(redis.pcall('XLEN', KEYS[1])), redis.call('TIME'), number(redis.pcall('ZCARD', KEYS[2])),
        number(redis.pcall('XLEN', KEYS[3])), rows}
"""
_SAMPLE: Final = Script.from_source("sample", _SAMPLE_SOURCE, action="sampling the backlog")


def sampling_key(stream: str) -> str:
    """Return the lease of the host that samples a stream."""
    return f"{slot_prefix(stream)}:sampler"


class BacklogSampler:
    """Samples one stream.

    Args:
        stream: Its key.
        token: Identifies this worker as the owner of the lease.
        interval_s: Time between two samples.

    Attributes:
        next_at: Time of the next sample, on the monotonic clock.
        is_owner: True while the lease was ours at the last attempt.
    """

    def __init__(self, stream: str, token: str, *, interval_s: float = INTERVAL_S) -> None:
        self._stream = stream
        self._token = token
        self._interval_s = interval_s
        self._groups: set[str] = set()
        self.is_owner = False
        # Soon: a worker that has just started should be visible. Spread: hosts that start together differ.
        self.next_at = time.monotonic() + interval_s * (0.1 + 0.1 * random.random())  # noqa: S311

    def sample(self, client: SyncClient) -> None:
        """Take or renew the lease and set the gauges, if that is due.

        Raises:
            QueueError: The server refused or did not reply. The gauges keep their values until the next attempt.
        """
        now = time.monotonic()
        if now < self.next_at:
            return
        self.next_at = now + self._interval_s * (0.9 + 0.2 * random.random())  # noqa: S311
        prefix = slot_prefix(self._stream)
        keys = (self._stream, f"{prefix}:delayed", f"{prefix}:dead", sampling_key(self._stream))
        lease = (self._token, round(self._interval_s * 2_500))
        reply = _SAMPLE.call_sync(client, keys, (_GROUPS, *lease), stream=self._stream)
        self.is_owner = reply is not None
        if reply is None:
            self.forget()
            return
        self._set_gauges(reply)
        count(STREAM_SAMPLES_TOTAL, self._stream)

    def forget(self) -> None:
        """Report nothing any more: another host samples the stream, or this one ends."""
        if self._groups:
            for gauge in _STREAM_GAUGES:
                set_gauge(gauge, self._stream, value=math.nan)
        for group in self._groups:
            self._forget_group(group)
        self._groups.clear()

    def _forget_group(self, group: str) -> None:
        for gauge in _GROUP_GAUGES:
            set_gauge(gauge, self._stream, group, value=math.nan)

    def _set_gauges(self, reply: Any) -> None:
        stream = self._stream
        length, now, delayed, dead, rows = reply
        for gauge, value in ((STREAM_LENGTH, length), (STREAM_DELAYED, delayed), (STREAM_DEAD_LETTERS, dead)):
            set_gauge(gauge, stream, value=value)
        now_ms = server_ms(now)
        seen: set[str] = set()
        for raw, pending, waiting in rows:
            row = as_mapping(raw)
            group = _name(row)
            seen.add(group)
            lag = group_lag(row, length=length, waiting=bool(waiting))
            age_s = max(0.0, (now_ms - milliseconds_of(text(waiting))) / 1000) if waiting else 0.0
            set_gauge(STREAM_LAG, stream, group, value=math.nan if lag is None else lag)
            set_gauge(STREAM_PENDING, stream, group, value=pending)
            set_gauge(STREAM_OLDEST_WAITING_SECONDS, stream, group, value=age_s)
        for gone in self._groups - seen:
            self._forget_group(gone)
        self._groups = seen


def _name(row: dict[bytes, Any]) -> str:
    return printable(row[b"name"].decode(errors="replace"), limit=60)
