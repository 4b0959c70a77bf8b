-- Store the progress of a job. KEYS: progress; ARGV: fraction, text, ms it is kept.
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
redis.call('HSET', KEYS[1], 'fraction', ARGV[1], 'text', ARGV[2], 'at_ms', now)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
