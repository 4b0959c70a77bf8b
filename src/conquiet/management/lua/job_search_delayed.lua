-- Search a part of a sorted set for a text. KEYS: sorted set; ARGV: cursor, approximate number of members, text.
-- Returns {next cursor (false at the end), members seen, {{member, score}, …}}.
local reply = redis.call('ZSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local found = {}
for i = 1, #reply[2], 2 do
  if string.find(reply[2][i], ARGV[3], 1, true) then found[#found + 1] = {reply[2][i], reply[2][i + 1]} end
end
return {reply[1] ~= '0' and reply[1], #reply[2] / 2, found}
