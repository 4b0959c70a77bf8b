"""The few steps that have to be one step on the server: Lua, each on keys of one hash slot."""

import hashlib

EXTEND_LEASE = """
local kept = {}
for i = 3, #ARGV do
  local row = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if #row == 1 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
    kept[#kept + 1] = ARGV[i]
  end
end
return kept
"""
"""Reset the idle clock of entries that are still ours. KEYS: stream; ARGV: group, consumer, ids. Answers the ids kept.

Looking and claiming must be one step: XCLAIM does not ask who the owner is, so a late extension would take
back an entry that another consumer has claimed and is working on. JUSTID leaves the delivery count alone.
"""

ENQUEUE_MANY = """
local ids = {}
for i = 1, #ARGV do
  ids[i] = redis.call('XADD', KEYS[1], '*', 'data', ARGV[i])
end
return ids
"""
"""Add entries, all or none. KEYS: stream; ARGV: data of each. Answers their ids.

Not MULTI: a user who may XADD and not MULTI has the commands between run one by one. Whatever makes the
server refuse an XADD (type, memory, rights, replica) is so at the first one, and stays so during a script.
"""

ENQUEUE_ONCE = """
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
"""Add an entry unless the key has done so before. KEYS: stream, mark; ARGV: data, digest, milliseconds.

Answers "id digest" of the entry that is there, first or not. The mark is set before anything is added, as "-": a mark
that the server refuses must not leave an entry behind, which the next call would add again. Setting it a second time,
for as long, is not refused.
"""


def mark_key(stream: str, idempotency_key: str) -> str:
    """Return the Redis key that remembers an idempotency key, in the slot of its stream.

    The key itself is not stored: it may be an e-mail address.
    """
    opened = stream.find("{")
    has_tag = opened >= 0 and stream.find("}", opened + 1) > opened + 1
    digest = hashlib.sha256(idempotency_key.encode()).hexdigest()
    return f"{stream}:once:{digest}" if has_tag else f"{{{stream}}}:once:{digest}"
