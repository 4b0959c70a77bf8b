-- with: conquiet.processor/ordering
-- Replace a dead letter by a message with other data. One step: of two concurrent retries, one succeeds.
-- KEYS: stream, dead, order; ARGV: id of the dead letter, group, payload. Returns 1; 0 if it is gone; 2 without its group.
if #redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[1]) == 0 then return 0 end
local found = false
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    for i = 1, #group, 2 do
      if group[i] == 'name' and group[i + 1] == ARGV[2] then found = true end
    end
  end
end
if not found then return 2 end
admit(KEYS[1], KEYS[3], ARGV[3])
redis.call('XDEL', KEYS[2], ARGV[1])
return 1
