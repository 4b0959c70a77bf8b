-- Return the outcome of a request to cancel. KEYS: stream, cancel, record; ARGV: job id, ms the record is kept
-- Returns the state of the record: 'requested', 'cancelled', 'finished', or ''. If the entry was
-- acknowledged without a decision, the request came too late: every other end removes the request in its own step.
local state = redis.call('HGET', KEYS[3], 'state')
if state ~= 'requested' then return state or '' end
local group, entry = redis.call('HGET', KEYS[3], 'group'), redis.call('HGET', KEYS[3], 'entry')
if not entry then return state end
if redis.call('HEXISTS', KEYS[2], entry .. ' ' .. group) == 1 then
  if #redis.call('XPENDING', KEYS[1], group, entry, entry, 1) == 1 then return state end
  local last
  for _, one in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local facts = {}
    for i = 1, #one, 2 do facts[one[i]] = one[i + 1] end
    if facts['name'] == group then last = facts['last-delivered-id'] end
  end
  local a_ms, a_seq = string.match(entry, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(last or '0-0', '^(%d+)-(%d+)$')
  if tonumber(a_ms) > tonumber(b_ms) or (a_ms == b_ms and tonumber(a_seq) > tonumber(b_seq)) then return state end
  redis.call('HDEL', KEYS[2], entry .. ' ' .. group)
end
redis.call('HSET', KEYS[3], 'state', 'finished')
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return 'finished'
