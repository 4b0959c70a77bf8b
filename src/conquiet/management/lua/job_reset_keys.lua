-- Delete the messages that wait behind others of their key, for some keys, longest queues first.
-- KEYS: order, waiting keys; ARGV: most keys. Returns {remaining keys, messages deleted}.
-- makes names of keys
local deleted = 0
for _, key in ipairs(redis.call('ZREVRANGE', KEYS[2], 0, tonumber(ARGV[1]) - 1)) do
  local list = KEYS[1] .. ':key:' .. key
  deleted = deleted + redis.call('LLEN', list)
  redis.call('UNLINK', list)
  redis.call('ZREM', KEYS[2], key)
end
return {redis.call('ZCARD', KEYS[2]), deleted}
