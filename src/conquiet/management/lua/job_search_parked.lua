-- Search a part of a list for a text. KEYS: list; ARGV: first position, most members, text.
-- Returns {next position (false at the end), members seen, {member, …}}.
local page = redis.call('LRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1)
local found = {}
for _, member in ipairs(page) do
  if string.find(member, ARGV[3], 1, true) then found[#found + 1] = member end
end
return {#page == tonumber(ARGV[2]) and ARGV[1] + #page, #page, found}
