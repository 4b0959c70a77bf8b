-- Search the messages that wait behind others of one key for a text. KEYS: waiting keys, order
-- ARGV: number of the key (longest queue first) and first position, as 'number:position'; most members, text.
-- Returns {next place (false at the end), members seen, {member, …}}.
-- makes names of keys
local number, first = string.match(ARGV[1], '(%d+):(%d+)')
local key = redis.call('ZREVRANGE', KEYS[1], number, number)[1]
if not key then return {false, 0, {}} end
local page = redis.call('LRANGE', KEYS[2] .. ':key:' .. key, first, first + ARGV[2] - 1)
local found = {}
for _, member in ipairs(page) do
  if string.find(member, ARGV[3], 1, true) then found[#found + 1] = member end
end
if #page == tonumber(ARGV[2]) then return {number .. ':' .. (first + #page), #page, found} end
return {(number + 1) .. ':0', #page, found}
