"""Lua scripts on one stream that more than one package uses."""

from typing import Final

EXTEND_LEASE: Final = """
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
"""Reset the idle time of entries that are still ours. KEYS: stream; ARGV: group, consumer, ids. Returns the ids kept.

Checking and claiming must be one step: XCLAIM does not check the owner, so a late extension would take an entry from
the consumer that has claimed it meanwhile. JUSTID leaves the delivery count unchanged.
"""

ENQUEUE_MANY: Final = """
local ids = {}
for i = 1, #ARGV do ids[i] = redis.call('XADD', KEYS[1], '*', 'data', ARGV[i]) end
return ids
"""
"""Add entries, all or none. KEYS: stream; ARGV: data of each. Returns their ids.

Not MULTI: for a user who may run XADD but not MULTI, the server would run the commands one by one. Every reason to
refuse an XADD (type, memory, rights, replica) applies to the first one already, and does not arise during a script.
"""
