-- Return the sizes of sorted sets, as of one moment. KEYS: sorted sets.
local counts = {}
for i = 1, #KEYS do counts[i] = redis.call('ZCARD', KEYS[i]) end
return counts
