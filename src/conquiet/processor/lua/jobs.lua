-- Record the states of jobs. KEYS: the sets of the seven states, then one hash per job
-- ARGV: ms a finished job is kept, then per job: number of its state, id, event, attempt, error, '1' to record only a
-- new job, its history as JSON or ''
local names = {'waiting', 'delayed', 'running', 'succeeded', 'failed', 'dead', 'cancelled'}
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

-- Hosts write late: the failure of one attempt may arrive after the next attempt has begun or ended. A state that begins
-- after an end belongs to a new run of the job: a replay, or the same id again.
local function is_late(old, old_attempt, state, attempt)
  local ended = old == 'succeeded' or old == 'dead' or old == 'cancelled'
  if ended and state <= 3 then return false end
  return attempt < old_attempt or (ended and state == 5)
end

for i = 2, #ARGV, 7 do
  local job = KEYS[8 + (i - 2) / 7]
  local state, id = tonumber(ARGV[i]), ARGV[i + 1]
  local known = redis.call('HMGET', job, 'state', 'attempt')
  local old = known[1]
  if not old or (ARGV[i + 5] ~= '1' and not is_late(old, tonumber(known[2]), state, tonumber(ARGV[i + 3]))) then
    for s = 1, 7 do
      if names[s] == old then redis.call('ZREM', KEYS[s], id) end
    end
    redis.call('ZADD', KEYS[state], now, id)
    redis.call('HSET', job, 'state', names[state], 'event', ARGV[i + 2], 'attempt', ARGV[i + 3], names[state] .. '_ms', now)
    if ARGV[i + 4] ~= '' then redis.call('HSET', job, 'error', ARGV[i + 4]) end
    if ARGV[i + 6] ~= '' then redis.call('HSET', job, 'story', ARGV[i + 6]) end
    if state == 4 or state >= 6 then redis.call('PEXPIRE', job, ARGV[1]) else redis.call('PERSIST', job) end
  end
end
-- Purge more jobs than can have ended since the last call, but few enough not to block other clients: after an idle time
-- all jobs may have expired.
local gone = string.format('%.0f', now - tonumber(ARGV[1]))
for _, ended in ipairs({KEYS[4], KEYS[6], KEYS[7]}) do
  local count = redis.call('ZCOUNT', ended, '-inf', gone)
  if count > 0 then redis.call('ZREMRANGEBYRANK', ended, 0, math.min(count, 1000) - 1) end
end
return 1
