-- Return a page of the pending entries of a group, with their fields.
-- KEYS: stream; ARGV: group, first id, most entries
-- Returns {{entry id, consumer, idle ms, deliveries, {field, value, …}}, …}; the fields are empty if the entry is gone.
local answers = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], '+', ARGV[3])
for _, row in ipairs(answers) do
  local found = redis.call('XRANGE', KEYS[1], row[1], row[1])
  row[5] = found[1] and found[1][2] or {}
end
return answers
