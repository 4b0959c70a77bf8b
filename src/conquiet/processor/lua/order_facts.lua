-- Return the state of the order by key. KEYS: order, waiting keys; ARGV: most keys to name
-- Returns {keys that have a holder, the group that owns the order or '', messages that wait, {key, number, …} longest first}.
-- The sum is over the 10,000 longest queues.
local owner = redis.call('HGET', KEYS[1], '\1')
local holders = redis.call('HLEN', KEYS[1]) - redis.call('HEXISTS', KEYS[1], '') - redis.call('HEXISTS', KEYS[1], '\1')
  - redis.call('HEXISTS', KEYS[1], '\2')
local queues = redis.call('ZREVRANGE', KEYS[2], 0, 9999, 'WITHSCORES')
local waiting, named = 0, {}
for i = 2, #queues, 2 do
  waiting = waiting + tonumber(queues[i])
  if i <= 2 * tonumber(ARGV[1]) then
    named[#named + 1] = queues[i - 1]
    named[#named + 1] = tonumber(queues[i])
  end
end
return {holders, owner or '', waiting, named}
