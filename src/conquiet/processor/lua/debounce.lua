-- Let a message wait, in place of the one that waits under the same name.
-- KEYS: delayed, wake, debounce; ARGV: payload, delay in ms, how long the name is remembered beyond that in ms
-- Answers {due time, 1 if another message was replaced, its id}.
-- What can be refused is refused before the first write: an error ends a script where it stands, and what waited would be
-- gone, or the new message there and nobody told.
redis.call('ZCARD', KEYS[1])
redis.call('XLEN', KEYS[2])
local t = redis.call('TIME')
local due = t[1] * 1000 + math.floor(t[2] / 1000) + tonumber(ARGV[2])
local kept = string.format('%.0f', math.min(tonumber(ARGV[2]) + tonumber(ARGV[3]), 2 ^ 52))
local waiting = redis.call('GET', KEYS[3])
local replaced = 0
if waiting then replaced = redis.call('ZREM', KEYS[1], waiting) end
redis.call('ZADD', KEYS[1], due, ARGV[1])
redis.call('SET', KEYS[3], ARGV[1], 'PX', kept)
local first = redis.call('ZRANGE', KEYS[1], 0, 0)
if first[1] == ARGV[1] then redis.call('XADD', KEYS[2], 'MAXLEN', 1, '*', 'w', '1') end
-- Within a JSON text quotes are escaped, so the first place that looks like this is the one.
local id = replaced == 1 and string.match(waiting, ',"id":"(%x+)","attempt":1,')
return {string.format('%.0f', due), replaced, id or ''}
