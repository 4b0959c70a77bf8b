-- with: conquiet.processor/ordering
-- Remove a job from the delayed set, a list of parked messages or the queue of its key, and record its cancellation.
-- KEYS: delayed set or parked list, record, hash of the job's state, ids of the cancelled jobs, stream, order
-- ARGV: payload, 'delayed', 'parked' or 'behind', phase, event, group, id, ms the record is kept, prefix of the sets of ids
-- Returns 1, or 0 if the job is gone.
local removed
if ARGV[2] == 'delayed' then removed = redis.call('ZREM', KEYS[1], ARGV[1])
-- Searched from the end of the list, where a bulk run begins: a long list is not searched again for each message.
else removed = redis.call('LREM', KEYS[1], -1, ARGV[1]) end
if removed == 0 then return 0 end
release_message(KEYS[5], KEYS[6], ARGV[1])
if ARGV[2] == 'behind' then
  local left, waiting = redis.call('LLEN', KEYS[1]), KEYS[6] .. ':waiting'
  local key = string.sub(KEYS[1], #KEYS[6] + 6) -- behind ':key:'; removed bytes that are unreadable have none
  if left > 0 then redis.call('ZADD', waiting, left, key) else redis.call('ZREM', waiting, key) end
end
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
redis.call('HSET', KEYS[2], 'state', 'cancelled', 'at_ms', now, 'event', ARGV[4], 'group', ARGV[5], 'while_in', ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[7])
-- The state is a view: it is written only if states are stored, and its failure is ignored.
local state = redis.pcall('HGET', KEYS[3], 'state')
if type(state) == 'string' then
  redis.pcall('ZREM', ARGV[8] .. state, ARGV[6])
  redis.pcall('ZADD', KEYS[4], now, ARGV[6])
  redis.pcall('HSET', KEYS[3], 'state', 'cancelled', 'cancelled_ms', now)
  redis.pcall('PEXPIRE', KEYS[3], ARGV[7])
end
return 1
