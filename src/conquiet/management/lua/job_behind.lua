-- Return a page of the messages that wait behind others of one key. KEYS: waiting keys, order
-- ARGV: number of the key (longest queue first), first position, most members. Returns {member, …}; nothing without such a key.
-- makes names of keys
local key = redis.call('ZREVRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not key then return false end
return redis.call('LRANGE', KEYS[2] .. ':key:' .. key, ARGV[2], ARGV[2] + ARGV[3] - 1)
