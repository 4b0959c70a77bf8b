-- Store the number of partitions in a partition. KEYS: order; ARGV: number of partitions, its own. It never decreases.
local known = string.match(redis.call('HGET', KEYS[1], '\2') or '0 0', '^(%d+)')
if tonumber(known) < tonumber(ARGV[1]) then redis.call('HSET', KEYS[1], '\2', ARGV[1] .. ' ' .. ARGV[2]) end
return 1
