"""Lua scripts of the queue: steps that must be one step on the server, on keys of one hash slot."""

import hashlib
from typing import Final

from conquiet.redis_transport.hash_tags import slot_prefix

ENQUEUE_ONCE: Final = """
local first = redis.call('GET', KEYS[2])
if first and first ~= '-' then return first end
redis.call('SET', KEYS[2], '-', 'PX', ARGV[3])
local added = redis.pcall('XADD', KEYS[1], '*', 'data', ARGV[1])
if type(added) == 'table' and added.err then
  redis.call('SET', KEYS[2], '-', 'PX', 1)
  return added
end
redis.call('SET', KEYS[2], added .. ' ' .. ARGV[2], 'PX', ARGV[3])
return added .. ' ' .. ARGV[2]
"""
"""Add an entry unless the idempotency key has added one. KEYS: stream, mark; ARGV: data, digest, milliseconds.

Returns "id digest" of the key's entry, new or not. The mark is set before the entry is added, as "-": if the server
refused the mark afterwards, the entry would exist without it, and the next call would add a second one. Setting the
mark again for the same time is not refused.
"""


def mark_key(stream: str, idempotency_key: str) -> str:
    """Return the Redis key that remembers an idempotency key, in the slot of its stream.

    The idempotency key itself is not stored: it may be an e-mail address.
    """
    digest = hashlib.sha256(idempotency_key.encode()).hexdigest()
    return f"{slot_prefix(stream)}:once:{digest}"
