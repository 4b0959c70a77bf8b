-- How many members each set has. KEYS: sorted sets.
local counts = {}
for i = 1, #KEYS do counts[i] = redis.call('ZCARD', KEYS[i]) end
return counts
