-- with: conquiet.processor/ordering
-- Cancel the job of an entry. Removed now if no group needs the entry; otherwise its worker decides.
-- KEYS: stream, cancel, wake, record, hash of the job's state, ids of the cancelled jobs, order
-- ARGV: entry id, group (empty if the stream has none), event, job id, ms the record is kept, prefix of the sets of
-- ids
-- Returns 'cancelled', 'requested', 'finished' if the group has acknowledged the entry, or 'gone'.
local function is_after(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if tonumber(a_ms) ~= tonumber(b_ms) then return tonumber(a_ms) > tonumber(b_ms) end
  return tonumber(a_seq) > tonumber(b_seq)
end
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
local function record(state, phase)
  redis.call('HSET', KEYS[4], 'state', state, 'at_ms', now, 'event', ARGV[3], 'group', ARGV[2], 'while_in', phase, 'entry', ARGV[1])
  redis.call('PEXPIRE', KEYS[4], ARGV[5])
end
local entry = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not entry then return 'gone' end
local waits, needed = true, false
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local facts = {}
  for i = 1, #group, 2 do facts[group[i]] = group[i + 1] end
  local undelivered = is_after(ARGV[1], facts['last-delivered-id'])
  local pending = not undelivered and #redis.call('XPENDING', KEYS[1], facts['name'], ARGV[1], ARGV[1], 1) == 1
  if facts['name'] == ARGV[2] then
    waits = undelivered
    if not undelivered and not pending then return 'finished' end
  elseif undelivered or pending then
    needed = true
  end
end
if waits and not needed then
  redis.call('XDEL', KEYS[1], ARGV[1])
  release_message(KEYS[1], KEYS[7], entry[2][2])
  record('cancelled', 'waiting')
  local state = redis.pcall('HGET', KEYS[5], 'state')
  if type(state) == 'string' then
    redis.pcall('ZREM', ARGV[6] .. state, ARGV[4])
    redis.pcall('ZADD', KEYS[6], now, ARGV[4])
    redis.pcall('HSET', KEYS[5], 'state', 'cancelled', 'cancelled_ms', now)
    redis.pcall('PEXPIRE', KEYS[5], ARGV[5])
  end
  return 'cancelled'
end
redis.call('HSET', KEYS[2], ARGV[1] .. ' ' .. ARGV[2], ARGV[4])
record('requested', waits and 'waiting' or 'running')
redis.call('XADD', KEYS[3], 'MAXLEN', 1, '*', 'w', '1')
return 'requested'
