-- Let a message wait, in place of the one that waits under the same name.
-- KEYS: delayed, wake, debounce; ARGV: payload, delay in ms, how long the name is remembered beyond that in ms
-- Answers {due time, 1 if another message was replaced}.
local t = redis.call('TIME')
local due = t[1] * 1000 + math.floor(t[2] / 1000) + tonumber(ARGV[2])
local waiting = redis.call('GET', KEYS[3])
local replaced = 0
if waiting then replaced = redis.call('ZREM', KEYS[1], waiting) end
redis.call('ZADD', KEYS[1], due, ARGV[1])
redis.call('SET', KEYS[3], ARGV[1], 'PX', tonumber(ARGV[2]) + tonumber(ARGV[3]))
local first = redis.call('ZRANGE', KEYS[1], 0, 0)
if first[1] == ARGV[1] then redis.call('XADD', KEYS[2], 'MAXLEN', 1, '*', 'w', '1') end
return {string.format('%.0f', due), replaced}
