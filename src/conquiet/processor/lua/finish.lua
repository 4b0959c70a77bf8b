-- with: ordering
-- Acknowledge entries of messages with a key, and end their keys' turns, in one step: a crash leaves both undone or both done.
-- KEYS: stream, order; ARGV: group, consumer, then per entry: entry id, key, ticket
-- Answers how many were acknowledged: an entry that is not this consumer's any more is its new owner's, and so is its key.
-- The acknowledgement comes first: once a script has written, a server without memory lets it finish.
local owns = owns_order(KEYS[1], KEYS[2], ARGV[1])
local done = 0
for i = 3, #ARGV, 3 do
  if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]) == 1 then
    done = done + redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
    if owns then release(KEYS[1], KEYS[2], ARGV[i + 1], ARGV[i + 2]) end
  end
end
return done
