-- End the first half of a growth: all partitions are marked. KEYS: layout; ARGV: number before, new number
if redis.call('HGET', KEYS[1], 'next') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'count', ARGV[2], 'previous', ARGV[1])
redis.call('HDEL', KEYS[1], 'next')
return 1
