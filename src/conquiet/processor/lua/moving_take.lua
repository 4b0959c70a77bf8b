-- Read messages of keys that moved to another partition, as the only host that moves them. They stay until they are stored
-- there.
-- KEYS: order; ARGV: token of the host, its lease in ms, most messages. Returns {number of partitions or '', {payloads}}.
-- makes names of keys
local lease = KEYS[1] .. ':mover'
if redis.call('SET', lease, ARGV[1], 'NX', 'PX', ARGV[2]) == false then
  if redis.call('GET', lease) ~= ARGV[1] then return {'', {}} end
  redis.call('PEXPIRE', lease, ARGV[2])
end
local count = string.match(redis.call('HGET', KEYS[1], '\2') or '', '^(%d+)') or ''
return {count, redis.call('LRANGE', KEYS[1] .. ':moving', 0, tonumber(ARGV[3]) - 1)}
