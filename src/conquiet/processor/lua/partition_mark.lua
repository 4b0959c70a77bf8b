-- Write into a partition how many there are. KEYS: order; ARGV: number of partitions, its own. It never goes back.
local known = string.match(redis.call('HGET', KEYS[1], '\2') or '0 0', '^(%d+)')
if tonumber(known) < tonumber(ARGV[1]) then redis.call('HSET', KEYS[1], '\2', ARGV[1] .. ' ' .. ARGV[2]) end
return 1
