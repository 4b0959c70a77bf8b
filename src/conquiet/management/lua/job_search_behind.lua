-- Search the messages that wait behind others of one key for a text. KEYS: waiting keys, order
-- ARGV: number of the key (longest queue first), first position, most members, text. Returns {members seen, {member, …}};
-- nothing without such a key.
-- makes names of keys
local key = redis.call('ZREVRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not key then return false end
local page = redis.call('LRANGE', KEYS[2] .. ':key:' .. key, ARGV[2], ARGV[2] + ARGV[3] - 1)
local found = {}
for _, member in ipairs(page) do
  if string.find(member, ARGV[4], 1, true) then found[#found + 1] = member end
end
return {#page, found}
