-- Emit a chunk of messages at once, all of them or none.
-- KEYS: stream; ARGV: payloads. Answers their entry ids.
local ids = {}
for i = 1, #ARGV do ids[i] = redis.call('XADD', KEYS[1], '*', 'data', ARGV[i]) end
return ids
