-- Remove requests to cancel entries that are acknowledged: their jobs had their effect.
-- KEYS: stream, cancel; ARGV: cursor, approximate number of requests, prefix of the records, ms a record is kept
-- Returns the next cursor. An entry that was not delivered yet is kept. Records lie in the same slot: their
-- prefix has the hash tag.
-- makes names of keys
local function is_after(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if tonumber(a_ms) ~= tonumber(b_ms) then return tonumber(a_ms) > tonumber(b_ms) end
  return tonumber(a_seq) > tonumber(b_seq)
end
local delivered = {}
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local facts = {}
    for i = 1, #group, 2 do facts[group[i]] = group[i + 1] end
    delivered[facts['name']] = facts['last-delivered-id']
  end
end
local reply = redis.call('HSCAN', KEYS[2], ARGV[1], 'COUNT', ARGV[2])
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
for i = 1, #reply[2], 2 do
  local field, record = reply[2][i], ARGV[3] .. reply[2][i + 1]
  local id, group = string.match(field, '^(%S+) (.*)$')
  local last = delivered[group]
  if not last or (not is_after(id, last) and #redis.call('XPENDING', KEYS[1], group, id, id, 1) == 0) then
    redis.call('HDEL', KEYS[2], field)
    if redis.call('HGET', record, 'state') == 'requested' then
      redis.call('HSET', record, 'state', 'finished', 'at_ms', now)
      redis.call('PEXPIRE', record, ARGV[4])
    end
  end
end
return reply[1]
