-- Remove messages that are in their partition now. KEYS: order; ARGV: payloads. Returns the number removed.
-- makes names of keys
local done = 0
for i = 1, #ARGV do done = done + redis.call('LREM', KEYS[1] .. ':moving', 1, ARGV[i]) end
return done
