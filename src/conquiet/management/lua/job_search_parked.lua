-- Look for a text in a part of a list. KEYS: list; ARGV: from which place, how many, text.
-- Answers {members seen, {member, …}}.
local page = redis.call('LRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1)
local found = {}
for _, member in ipairs(page) do
  if string.find(member, ARGV[3], 1, true) then found[#found + 1] = member end
end
return {#page, found}
