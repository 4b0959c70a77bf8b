-- End a pause, and wake every host. KEYS: paused, wake; ARGV: what. Returns 1 if it was paused.
local was = redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('XADD', KEYS[2], 'MAXLEN', 1, '*', 'w', '1')
return was
