-- Begin a growth. KEYS: layout; ARGV: new number. Returns {number now, number to grow to}: the second is the number
-- of an interrupted growth, which is completed first; 0 if there is nothing to do; -1 if the previous growth has not ended.
local layout = redis.call('HMGET', KEYS[1], 'count', 'previous', 'next')
local count, wanted = tonumber(layout[1] or '1'), tonumber(ARGV[1])
if layout[3] then return {count, tonumber(layout[3])} end
if wanted <= count then return {count, 0} end
if layout[2] then return {count, -1} end
redis.call('HSET', KEYS[1], 'next', ARGV[1])
return {count, wanted}
