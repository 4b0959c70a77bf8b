-- with: ordering
-- Find keys without a holder: its entry was deleted or acknowledged by another program. One step, because a holder that
-- moves (a retry, a claim) would be missed between two.
-- KEYS: stream, delayed, order, parked; ARGV: '1' to release them, most messages to read, prefix of the parked lists
-- Returns {keys}, or the number of messages if there are more than may be read.
local stream, delayed, order = KEYS[1], KEYS[2], KEYS[3]
local group = redis.call('HGET', order, '\1')
local rows = redis.call('EXISTS', stream) == 1 and redis.call('XINFO', 'GROUPS', stream) or {}
local facts = {}
for _, row in ipairs(rows) do
  local one = {}
  for j = 1, #row, 2 do one[row[j]] = row[j + 1] end
  if not group and #rows == 1 or one.name == group then facts = one end
end
local after = facts['last-delivered-id'] or '0-0'
local size = redis.call('ZCARD', delayed) + (facts.pending or 0) + redis.call('HLEN', order) + redis.call('XLEN', stream)
if size > tonumber(ARGV[2]) then return size end

local live = {}
local function note(payload)
  local key, stop = key_of(payload)
  local ticket = key and string.match(payload, '^,"ticket":(%d+)', stop + 1)
  if ticket then live[ticket] = true end
end
for _, payload in ipairs(redis.call('ZRANGE', delayed, 0, -1)) do note(payload) end
for _, event in ipairs(redis.call('SMEMBERS', KEYS[4])) do
  for _, payload in ipairs(redis.call('LRANGE', ARGV[3] .. event, 0, -1)) do note(payload) end
end
for _, entry in ipairs(redis.call('XRANGE', stream, '(' .. after, '+')) do note(entry[2][2]) end
if facts.pending and facts.pending > 0 then
  for _, row in ipairs(redis.call('XPENDING', stream, facts.name, '-', '+', facts.pending)) do
    local entry = redis.call('XRANGE', stream, row[1], row[1])[1]
    if entry then note(entry[2][2]) end
  end
end

local stuck = {}
local holders = redis.call('HGETALL', order)
for i = 1, #holders, 2 do
  local key, ticket = holders[i], holders[i + 1]
  if key ~= '' and key ~= '\1' and key ~= '\2' and not live[ticket] then
    stuck[#stuck + 1] = key
    if ARGV[1] == '1' then release(stream, order, key, ticket) end
  end
end
return stuck
