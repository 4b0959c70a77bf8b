-- Finish a growth: no key has a holder in its old partition. KEYS: layout; ARGV: number before, number now
local layout = redis.call('HMGET', KEYS[1], 'previous', 'count')
if layout[1] ~= ARGV[1] or layout[2] ~= ARGV[2] then return 0 end
return redis.call('HDEL', KEYS[1], 'previous')
