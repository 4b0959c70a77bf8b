-- Pause a stream ('*') or an event, and wake every host. KEYS: paused, wake; ARGV: what. Returns 1 if it was not paused.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local new = redis.call('HSETNX', KEYS[1], ARGV[1], string.format('%.0f', now))
redis.call('XADD', KEYS[2], 'MAXLEN', 1, '*', 'w', '1')
return new
