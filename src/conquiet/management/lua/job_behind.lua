-- Messages that wait behind others of their key: a page of one line. KEYS: waiting keys, order
-- ARGV: number of the line (longest first), from which place, how many. Answers {member, …}; nothing if there is no such line.
-- makes names of keys
local key = redis.call('ZREVRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not key then return false end
return redis.call('LRANGE', KEYS[2] .. ':key:' .. key, ARGV[2], ARGV[2] + ARGV[3] - 1)
