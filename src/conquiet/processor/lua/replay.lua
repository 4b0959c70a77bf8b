-- with: ordering
-- Remove dead letters and return their messages to the stream. Only the first caller replays a dead letter.
-- A dead letter of a group that does not exist stays: no worker would handle its message.
-- KEYS: stream, dead, order; ARGV: '1' for a dry run, then per dead letter: its id, its group, payload
-- Returns per dead letter 1; 0 if it is gone; 2 if it stays because its group does not exist.
local groups = {}
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    for j = 1, #group, 2 do
      if group[j] == 'name' then groups[group[j + 1]] = true end
    end
  end
end
local answers = {}
for i = 2, #ARGV, 3 do
  local answer = #redis.call('XRANGE', KEYS[2], ARGV[i], ARGV[i])
  if answer == 1 and not groups[ARGV[i + 1]] then answer = 2 end
  if answer == 1 and ARGV[1] ~= '1' then
    admit(KEYS[1], KEYS[3], ARGV[i + 2])
    redis.call('XDEL', KEYS[2], ARGV[i])
  end
  answers[#answers + 1] = answer
end
return answers
