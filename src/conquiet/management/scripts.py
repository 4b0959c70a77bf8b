"""What an operator does that has to be one step on the server: Lua, each on one key."""

RETIRE = """
local function field(row, name)
  for i = 1, #row, 2 do if row[i] == name then return row[i + 1] end end
end
local mine
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  if field(row, 'name') == ARGV[2] then mine = row end
end
if not mine then return {'missing', 0} end
if field(mine, 'idle') < tonumber(ARGV[4]) then return {'alive', field(mine, 'idle')} end
local pending = field(mine, 'pending')
local moved = 0
if pending > 0 then
  if ARGV[3] == '' then return {'pending', pending} end
  local rows = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[5], ARGV[2])
  for _, row in ipairs(rows) do
    moved = moved + #redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, row[1], 'IDLE', row[3], 'JUSTID')
  end
  if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return {'more', moved} end
end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return {'retired', moved}
"""
"""Hand a consumer's pending entries over and delete it at zero. KEYS: stream; ARGV: group, consumer, heir or
empty, least idle ms, most entries per step.

DELCONSUMER drops whatever is pending for the consumer, for ever. So looking, handing over and deleting
are one step, and the deletion comes only when nothing is left. JUSTID keeps delivery counts, IDLE the idle
time: to everyone who looks for stale work nothing has changed but the owner's name. Counted is what XCLAIM
says it moved: of an entry that was deleted from the stream it only takes the record away (from 7.0 on).
"""

RECLAIM = """
local claimed = {}
for i = 4, #ARGV, 4 do
  local row = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  local same = row and row[2] == ARGV[i + 1] and row[4] == tonumber(ARGV[i + 3])
  if same and row[3] >= tonumber(ARGV[i + 2]) then
    local moved
    if ARGV[3] == '' then
      moved = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
    else
      moved = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[3], 'JUSTID')
    end
    if #moved > 0 then claimed[#claimed + 1] = ARGV[i] end
  end
end
return claimed
"""
"""Take over entries that are as they were when we looked. KEYS: stream; ARGV: group, heir, idle ms to give them or
empty, then for each its id, and the owner, idle ms and deliveries that were seen.

XCLAIM by itself checks no more than an idle time. Somebody who claimed an entry since we looked works on it by
now: another owner, another delivery or a shorter idle time says so, and it stays with him.
"""

TRIM = """
local function field(row, name)
  for i = 1, #row, 2 do if row[i] == name then return row[i + 1] end end
end
local function parts(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return ms, seq
end
local function shorter(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end
local function before(a, b)
  local am, as = parts(a)
  local bm, bs = parts(b)
  if am ~= bm then return shorter(am, bm) end
  return as ~= bs and shorter(as, bs)
end
local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
if #groups == 0 then return {'no groups', '', 0} end
local needed
for _, row in ipairs(groups) do
  local id = field(row, 'last-delivered-id')
  local pending = redis.call('XPENDING', KEYS[1], field(row, 'name'))
  if pending[1] > 0 and before(pending[2], id) then id = pending[2] end
  if not needed or before(id, needed) then needed = id end
end
if ARGV[1] ~= '' and before(ARGV[1], needed) then needed = ARGV[1] end
local removed = 0
if ARGV[2] == 'approximate' then
  removed = redis.call('XTRIM', KEYS[1], 'MINID', '~', needed, 'LIMIT', ARGV[3])
elseif ARGV[2] == 'exact' then
  removed = redis.call('XTRIM', KEYS[1], 'MINID', needed)
end
return {'ok', needed, removed}
"""
"""Remove entries below what any group needs. KEYS: stream; ARGV: another upper bound or empty, mode, limit per step.

A group needs everything from its oldest pending entry on, or, with none pending, from the last entry it
was given (that one is kept: it is done, and costs nothing). Ids are compared as text without leading
zeros, because a Lua number cannot hold 64 bits.
"""
