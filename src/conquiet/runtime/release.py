"""Release messages to the group uncharged, so that another consumer can start them at once.

Redis cannot undo a delivery. But XCLAIM can set what the group remembers of it: an idle time so long that every
consumer finds the entry stale, and the delivery count from before, so that a stop or an outage costs no delivery. The
owner is checked in the same step: an entry of another consumer is left alone.

XNACK (Redis 8.8) would do the same. It is not used: this way works on every server from 5.0 on.
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
"""KEYS: stream; ARGV: group, consumer, idle, then id and delivery count in turn. Answers how many were ours."""


def commands(messages: Sequence[RuntimeMessage], group: str, consumer_id: str) -> dict[str, bytes]:
    """Return one packed command per stream. ``max(…, 0)``: an entry delivered once goes back as never delivered."""
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
    """Return how many entries each stream has released; a refusal (scripts forbidden) is none."""
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
"""Take one delivery off entries that are ours. KEYS: stream; ARGV: group, consumer, idle time to set, ids."""
