"""Lua scripts that remove what no group needs any more: entries of a stream, and names of dead consumers.

One rule for operators (``management``) and for the housekeeping of workers (``queue``). Each script finds out what is
needed and removes in one step, so each is safe from any host at any time; a lease only saves work.
"""

from typing import Final

_FIELD: Final = """
local function field(row, name)
  for i = 1, #row, 2 do if row[i] == name then return row[i + 1] end end
end
"""

TRIM: Final = (
    _FIELD
    + """
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
local stream, mode, limit = KEYS[1], ARGV[1], tonumber(ARGV[2])
local keep_ms, keep_min, gaps_from = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
if KEYS[2] then
  local holder = redis.call('GET', KEYS[2])
  if holder and holder ~= ARGV[6] then
    local left, max_left = redis.call('PTTL', KEYS[2]), tonumber(ARGV[8])
    if not max_left or left <= max_left then return {'held', '', left, redis.call('XLEN', stream), 0, '', ''} end
  end
  redis.call('SET', KEYS[2], ARGV[6], 'PX', ARGV[7])
end
if redis.call('EXISTS', stream) == 0 then return {'no stream', '', 0, 0, 0, '', ''} end
local groups = redis.call('XINFO', 'GROUPS', stream)
local length = redis.call('XLEN', stream)
if #groups == 0 then return {'no groups', '', 0, length, length, '', ''} end

local needed, slowest, delivered
local undone, held_back = 0, 0
for _, row in ipairs(groups) do
  local name, last, pending = field(row, 'name'), field(row, 'last-delivered-id'), field(row, 'pending')
  local first = last
  if pending > 0 then
    local oldest = redis.call('XPENDING', stream, name, '-', '+', 1)[1]
    if oldest and before(oldest[1], last) then first = oldest[1] end
  end
  if not needed or before(first, needed) then needed, slowest = first, name end
  if not delivered or before(last, delivered) then delivered = last end
  undone = math.max(undone, pending + (field(row, 'lag') or 0))
  held_back = held_back + pending
end
if keep_ms > 0 then
  local t = redis.call('TIME')
  local young = string.format('%.0f-0', math.max(0, t[1] * 1000 + math.floor(t[2] / 1000) - keep_ms))
  if before(young, needed) then needed = young end
  if before(young, delivered) then delivered = young end
end
local spare = length - keep_min
if mode == 'report' or spare <= 0 then return {'ok', needed, 0, length, undone, slowest, ''} end

local removed = redis.call('XTRIM', stream, 'MINID', '~', needed, 'LIMIT', math.min(limit, spare))
if removed == 0 and keep_min == 0 then removed = redis.call('XTRIM', stream, 'MINID', needed) end
local cursor = ''
local has_gaps = removed == 0 and gaps_from ~= '' and before(needed, delivered)
if has_gaps and (redis.REDIS_VERSION_NUM or 0) >= 0x80200 and held_back <= 10000 then
  removed = redis.call('XTRIM', stream, 'MINID', '~', delivered, 'LIMIT', math.min(limit, spare), 'ACKED')
  cursor = gaps_from
end
if has_gaps and removed == 0 then
  cursor = before(gaps_from, needed) and needed or gaps_from
  local held, upto, most = {}, delivered, 1000
  for _, row in ipairs(groups) do
    if field(row, 'pending') > 0 then
      local rows = redis.call('XPENDING', stream, field(row, 'name'), cursor, '(' .. delivered, most)
      for _, one in ipairs(rows) do held[one[1]] = true end
      if #rows == most and before(rows[most][1], upto) then upto = rows[most][1] end
    end
  end
  local free, seen, bytes, page = {}, 0, 0, 8
  while seen < most and bytes < 262144 and #free < spare do
    local rows = redis.call('XRANGE', stream, '(' .. cursor, '(' .. upto, 'COUNT', page)
    for _, row in ipairs(rows) do
      if not held[row[1]] and #free < spare then free[#free + 1] = row[1] end
      for _, part in ipairs(row[2]) do bytes = bytes + #part end
    end
    seen = seen + #rows
    cursor = #rows == page and rows[page][1] or upto
    if cursor == upto then break end
    page = bytes < 65536 and math.min(page * 2, 250) or 8
  end
  if #free > 0 then removed = redis.call('XDEL', stream, unpack(free)) end
  if cursor == delivered then cursor = 'end' end
end
return {'ok', needed, removed, length - removed, undone, slowest, cursor}
"""
)
"""Remove entries acknowledged by every group. KEYS: stream, lease or nothing; ARGV: mode ('trim' or 'report'), most
entries per step, age in ms up to which entries are kept, minimum number of entries to keep, id to search for gaps from
or empty. With a lease: the token of the holder, the duration in ms, and the longest time in ms for which the lease of
another holder is respected, or nothing. A worker with traffic can then take the lease from a holder that makes no pass
for a while.

Returns a state ('ok', 'held', 'no groups', 'no stream'), the id below which no entry is needed, how many were removed
(for 'held': the lease's remaining ms), the length, entries that the group with the largest backlog has not handled, the
group that needs the oldest entry, and the id to continue from in the gaps ('end' at their end, empty if they were not
searched).

A group needs all entries from its oldest pending entry on. Without pending entries it needs all entries from its last
delivered entry on. That entry is kept although it is acknowledged: deleting it would make the server lose the lag of
the group. Whole nodes are trimmed first, then single entries.

Gaps lie behind an entry that stays pending: a handler of an hour, a message that is never acknowledged. Entries there
that were delivered to every group and are pending in none are deleted. Redis 8.2 and newer find these entries without
reading their data (ACKED). Each step then walks over all pending entries, so ACKED is not used with more than 10,000 of
them. On other servers, and for entries that ACKED leaves in a large node, the script deletes them one by one. It reads
the entries for that, so a step ends after 1,000 of them or 256 KiB. See docs/decisions/0011.

Ids are compared as text without leading zeros, because a Lua number cannot hold 64 bits.
"""

REMOVE_CONSUMER: Final = (
    _FIELD
    + """
local mine
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  if field(row, 'name') == ARGV[2] then mine = row end
end
if not mine then return {'missing', 0} end
if redis.call('EXISTS', KEYS[2]) == 1 then return {'key', redis.call('PTTL', KEYS[2])} end
if redis.call('SISMEMBER', KEYS[3], ARGV[2]) == 0 then
  if field(mine, 'idle') < tonumber(ARGV[4]) then return {'alive', field(mine, 'idle')} end
  if ARGV[6] ~= '1' then return {'unproved', field(mine, 'idle')} end
end
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
redis.call('SREM', KEYS[3], ARGV[2])
return {'removed', moved}
"""
)
"""Transfer a consumer's pending entries and delete it when none is left. KEYS: stream, liveness key, registered names;
ARGV: group, consumer, new owner or empty, least idle ms, most entries per step, 1 if that idle time is proof or force
is given.

A registered name without its key is dead, independent of its idle time. DELCONSUMER drops the pending entries of the
consumer. So the check, the transfer and the deletion are one script, and the name is deleted only when it has no
entries. JUSTID keeps delivery counts and IDLE the idle time, so that only the owner changes. The script counts the
entries that XCLAIM returns: for an entry that was deleted from the stream, XCLAIM only removes the record (from 7.0
on).
"""

LIST_NAMES: Final = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return false end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local rows = redis.pcall('XINFO', 'CONSUMERS', KEYS[2], ARGV[3])
if not rows.err then return rows end
if string.find(rows.err, 'NOGROUP', 1, true) or string.find(rows.err, 'no such key', 1, true) then return false end
return rows
"""
"""Take or renew a lease and list the consumers of a group. KEYS: lease, stream; ARGV: token of this worker,
milliseconds, group. Returns nothing if another worker has the lease, or there is no such group."""

REMOVE_DEAD_NAMES: Final = (
    _FIELD
    + """
local known = {}
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do known[field(row, 'name')] = row end
local removed = {}
for i = 3, #ARGV do
  local name = ARGV[i]
  local row = known[name]
  local registered = redis.call('SISMEMBER', KEYS[2], name) == 1
  if not row then
    if registered and redis.call('EXISTS', KEYS[i]) == 0 then redis.call('SREM', KEYS[2], name) end
  elseif field(row, 'pending') == 0 and redis.call('EXISTS', KEYS[i]) == 0
    and (registered or (ARGV[2] ~= '' and field(row, 'idle') >= tonumber(ARGV[2]))) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], name)
    redis.call('SREM', KEYS[2], name)
    removed[#removed + 1] = name
  end
end
return removed
"""
)
"""Delete the names of dead consumers that have nothing pending. KEYS: stream, registered names, then the liveness key
of each name; ARGV: group, idle ms that prove the death of a name that is not registered or empty, then the names.
Returns the names that were deleted.

A name with entries stays until another consumer has claimed them. A live consumer that lost its key (its process was
suspended) loses nothing when its name is deleted: its next read creates the name again.
"""
