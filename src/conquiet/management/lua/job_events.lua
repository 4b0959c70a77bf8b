-- The members of a set, in order. KEYS: set.
local members = redis.call('SMEMBERS', KEYS[1])
table.sort(members)
return members
