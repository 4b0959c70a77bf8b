-- Search a part of a list for a text. KEYS: list; ARGV: first position, most members, text.
-- Returns {members seen, {member, …}}.
local page = redis.call('LRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1)
local found = {}
for _, member in ipairs(page) do
  if string.find(member, ARGV[3], 1, true) then found[#found + 1] = member end
end
return {#page, found}
