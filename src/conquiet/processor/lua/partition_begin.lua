-- Begin a growth. KEYS: layout; ARGV: new number. Answers {number now, number to grow to}: the second is another one's if a
-- growth was cut off, which is ended first; it is 0 if there is nothing to do, and -1 if the growth before is not over.
local layout = redis.call('HMGET', KEYS[1], 'count', 'previous', 'next')
local count, wanted = tonumber(layout[1] or '1'), tonumber(ARGV[1])
if layout[3] then return {count, tonumber(layout[3])} end
if wanted <= count then return {count, 0} end
if layout[2] then return {count, -1} end
redis.call('HSET', KEYS[1], 'next', ARGV[1])
return {count, wanted}
