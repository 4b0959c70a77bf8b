-- with: ordering
-- Acknowledge messages with a key and release their keys, in one step: after a crash both are done, or neither is.
-- KEYS: stream, order; ARGV: group, consumer, then per entry: entry id, key, ticket
-- Returns the number acknowledged: an entry that another consumer has claimed, and its key, belong to that consumer.
-- The acknowledgement comes first: once a script has written, a server without memory executes the rest.
local owns = owns_order(KEYS[1], KEYS[2], ARGV[1])
local done = 0
for i = 3, #ARGV, 3 do
  if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]) == 1 then
    done = done + redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
    if owns then release(KEYS[1], KEYS[2], ARGV[i + 1], ARGV[i + 2]) end
  end
end
return done
