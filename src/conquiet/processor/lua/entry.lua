-- The fields of one entry, names and values in turn; nothing if it is gone. KEYS: stream; ARGV: entry id.
local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])
return found[1] and found[1][2] or {}
