"""Release messages to the group uncharged, so that another consumer can start them immediately.

Redis cannot undo a delivery, but XCLAIM can set its metadata: an idle time that makes the entry stale for every
consumer, and the previous delivery count, so that a stop or an outage costs no delivery. The same script checks the
owner: an entry of another consumer is not changed.

XNACK (Redis 8.8) would do the same. It is not used because XCLAIM works on every supported server.
"""

from collections.abc import Sequence
from typing import Any

from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.errors import ResponseError
from conquiet.runtime.message import RuntimeMessage
from conquiet.runtime.settings import RELEASED_IDLE_MS

RELEASE = """
local given = 0
for i = 4, #ARGV, 2 do
  local row = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if #row == 1 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[3], 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
    given = given + 1
  end
end
return given
"""
"""KEYS: stream; ARGV: group, consumer, idle time, then pairs of id and delivery count. Returns how many were owned."""


def commands(messages: Sequence[RuntimeMessage], group: str, consumer_id: str) -> dict[str, bytes]:
    """Return one packed command per stream. An entry delivered once is released with a delivery count of 0."""
    by_stream: dict[str, list[RuntimeMessage]] = {}
    for message in messages:
        by_stream.setdefault(message.stream, []).append(message)
    return {
        stream: pack(
            "EVAL",
            RELEASE,
            1,
            stream,
            group,
            consumer_id,
            RELEASED_IDLE_MS,
            *[word for message in those for word in (message.id, max(message.delivery_count - 1, 0))],
        )
        for stream, those in by_stream.items()
    }


def released(replies: Sequence[Any]) -> list[int]:
    """Return how many entries of each stream were released, 0 for an error reply (scripts forbidden)."""
    return [0 if isinstance(reply, ResponseError) else int(reply) for reply in replies]


UNDO_DELIVERY_COUNT = """
for i = 4, #ARGV do
  local row = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if #row == 1 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[3], 'RETRYCOUNT', row[1][4] - 1, 'JUSTID')
  end
end
return 0
"""
"""Decrement the delivery count of owned entries. KEYS: stream; ARGV: group, consumer, idle time to set, ids."""
