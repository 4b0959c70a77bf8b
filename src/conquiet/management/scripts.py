"""Lua scripts for operations that must be atomic, each on keys of one slot."""

RECLAIM = """
local claimed = {}
local options = {'JUSTID'}
if ARGV[3] ~= '' then options = {'IDLE', ARGV[3], unpack(options)} end
if ARGV[4] ~= '' then options = {'RETRYCOUNT', ARGV[4], unpack(options)} end
for i = 5, #ARGV, 4 do
  local row = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  local same = row and row[2] == ARGV[i + 1] and row[4] == tonumber(ARGV[i + 3])
  if same and row[3] >= tonumber(ARGV[i + 2]) then
    local moved = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], unpack(options))
    if #moved > 0 then claimed[#claimed + 1] = ARGV[i] end
  end
end
return claimed
"""
"""Claim entries that have not changed since they were listed. KEYS: stream; ARGV: group, new owner, idle ms to set or
empty, delivery count to set or empty, then for each its id, and the owner, idle ms and deliveries that were listed.

XCLAIM checks only the idle time. An entry with another owner, another delivery count or a shorter idle time has been
claimed by another worker since, and remains with that worker.
"""
